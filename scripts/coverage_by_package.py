"""Print the lines and branches that tests cover, by package of reroll, from the file `.coverage`."""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path


def main() -> None:
    """Print one line for each package, the least covered first, and the total."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        subprocess.run([sys.executable, "-m", "coverage", "json", "--quiet", "-o", report.name], check=True)
        files = json.loads(Path(report.name).read_text())["files"]
    packages: dict[str, Counter[str]] = {}
    for name, found in files.items():
        parts = Path(name).parts
        inside = parts[parts.index("reroll") + 1 :]
        package = "reroll" if len(inside) == 1 else f"reroll.{inside[0]}"
        numbers = {key: value for key, value in found["summary"].items() if isinstance(value, int)}
        packages.setdefault(package, Counter()).update(numbers)
        packages.setdefault("total", Counter()).update(numbers)
    print(f"{'package':24}{'lines':>8}{'missed':>8}{'branches':>10}{'missed':>8}{'covered':>10}")
    for package, n in sorted(packages.items(), key=lambda item: (item[0] == "total", _share(item[1]))):
        print(
            f"{package:24}{n['num_statements']:8}{n['missing_lines']:8}{n['num_branches']:10}"
            f"{n['missing_branches']:8}{_share(n):10.1%}"
        )


def _share(n: Counter[str]) -> float:
    covered = n["covered_lines"] + n["covered_branches"]
    return covered / max(n["num_statements"] + n["num_branches"], 1)


if __name__ == "__main__":
    main()
