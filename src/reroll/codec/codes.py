"""The numbers of the types that MessagePack does not have: each is an extension of this code in the body.

They are part of the format: a number is never given to another type.
"""

from typing import Final

TUPLE: Final = 1
SET: Final = 2
FROZENSET: Final = 3
DICT: Final = 4
"""Keys that are not all text: key, value, key, value, ..."""
INTEGER: Final = 5
"""Beyond 64 bits: its bytes, little-endian and signed."""
TEXT: Final = 6
"""With lone surrogates: UTF-8 that lets them pass."""
BYTES: Final = 7
BYTEARRAY: Final = 8
"""Both: the number of an array of uint8."""
NUMBERS: Final = 9
"""A list of only int or only float: the number of an array."""
COMPLEX: Final = 10
DATETIME: Final = 11
DATE: Final = 12
TIMEDELTA: Final = 13
UUID: Final = 14
DECIMAL: Final = 15
PATH: Final = 16

ARRAY: Final = 32
SCALAR: Final = 33
TENSOR: Final = 34

ROLLOUT: Final = 48
DICT_ROLLOUT: Final = 49
VERSIONS: Final = 50
STATUS: Final = 51

OBJECT: Final = 64
"""Of a registered type: its name and its state."""
PICKLE: Final = 65
REF: Final = 66
