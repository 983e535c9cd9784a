"""Codec: values to bytes and back, without loss and without running code. It does no I/O.

frame     the outermost bytes: magic, version, checksum, lengths; codes and limits of the format
arrays    arrays beside the body, aligned, each once; dtypes, numpy scalars, torch tensors
rows      `Rollout`s as rows
registry  `register`: types that are stored by name and state
encode    `encode`, `find_unstorable`
decode    `decode`, which trusts nothing

docs/format.md describes the bytes.
"""

from reroll.codec.decode import RefReader, decode
from reroll.codec.encode import RefWriter, Unstorable, encode, find_unstorable
from reroll.codec.frame import FORMAT_VERSION, checksum_of
from reroll.codec.registry import register

__all__ = [
    "FORMAT_VERSION",
    "RefReader",
    "RefWriter",
    "Unstorable",
    "checksum_of",
    "decode",
    "encode",
    "find_unstorable",
    "register",
]
