"""How an error names a place in a query, a wrong value, and the nearest right name.

Never fails itself, whatever a caller passed: only strings and floats are shown, of all else the type.
"""

import difflib
import json
import reprlib
from collections.abc import Iterable


def at_key(path: str, key: str) -> str:
    """Return the path of an entry: fields read as attributes, operators as keys."""
    if all(part.isidentifier() for part in key.split(".")):
        return f"{path}.{key}"
    return f"{path}[{json.dumps(key)}]"


def at_index(path: str, index: int) -> str:
    """Return the path of an element of a list."""
    return f"{path}[{index}]"


def shown(value: object) -> str:
    """Return the value as a message can show it: short, and safe for values of any size and depth."""
    if value is None or isinstance(value, bool):
        return repr(value)
    # Containers may be deep, integers too long to print, and foreign objects may raise in repr.
    if isinstance(value, (str, float)):
        return reprlib.repr(value)
    return f"a value of type {type(value).__name__}"


def instead(word: str, right: Iterable[str]) -> str:
    """Return the remedy for a misspelt word: the closest right one, or all of them."""
    known = list(right)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {json.dumps(close[0])}?" if close else f"use one of: {', '.join(known)}"
