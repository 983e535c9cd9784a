"""Check that the built site documents every public name: python scripts/check_site.py site."""

import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from meta import api


def documented(inventory: bytes) -> set[str]:
    """Return the names in an inventory of objects: a header of four lines, then compressed lines."""
    compressed = inventory.split(b"\n", 4)[4]
    return {line.split(" ", 1)[0] for line in zlib.decompress(compressed).decode().splitlines()}


def main(site: Path) -> str | None:
    """Return what is missing; None if nothing is."""
    found = documented((site / "objects.inv").read_bytes())
    public = [
        (module, name) for module in api.MODULES for name in api.exported(module) if not name.startswith("_")
    ]
    missing = [
        f"{module}.{name}"
        for module, name in public
        if not {
            f"{module}.{name}",
            f"{definition.module}.{name}" if (definition := api.find(module, name)) else "",
        }
        & found
    ]
    print(f"{len(public) - len(missing)} of {len(public)} public names are documented in {site}/")
    return f"not in the API reference: {missing}; give each a docstring" if missing else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
