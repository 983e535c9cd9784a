"""Check that a tag, the version of the package, CITATION.cff and CHANGELOG.md name the same release.

Usage: python scripts/check_release.py v0.2.0
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def named_versions(root: Path) -> dict[str, str | None]:
    """Return the version that each file names; None where it names none."""
    patterns = {
        "src/reroll/_version.py": r'__version__ = "([^"]+)"',
        "CITATION.cff": r"^version: (\S+)$",
        "CHANGELOG.md": r"^## \[(\d[^\]]*)\] - \d{4}-\d\d-\d\d$",  # with its date: released
    }
    return {
        name: found[1] if (found := re.search(pattern, (root / name).read_text(), re.MULTILINE)) else None
        for name, pattern in patterns.items()
    }


def main(tag: str) -> str | None:
    """Return what differs from the tag; None if nothing does."""
    wrong = {name: version for name, version in named_versions(ROOT).items() if f"v{version}" != tag}
    return f"the tag is {tag}, but these files name another version: {wrong}" if wrong else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
