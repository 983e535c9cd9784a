"""Values to bytes and back, without loss and without running code.

framing       the outermost bytes: magic, version, checksum, lengths
arrays        arrays beside the body, aligned, each once; dtypes, scalars, tensors serve it
encoding      `encode`, `encode_into`: lowering makes values plain, search finds the path of what cannot be stored
decoding      `decode`: bytes to values, which trusts nothing
registry      `register`: classes of the user; recipes take them apart and put them together
rollouts      `Rollout` as a row; plain_rollouts tells whether rows can be read later
plain_values  dates, paths and other small things
codes         the numbers of types in the format
refs          Ray references as numbers

The layout is in docs/format.md. The codec does no I/O.
"""

from reroll.codec.decoding import decode
from reroll.codec.encoding import encode, encode_into
from reroll.codec.framing import FORMAT_VERSION
from reroll.codec.plain_rollouts import count_plain_rollouts
from reroll.codec.refs import RefReader, RefWriter
from reroll.codec.registry import register
from reroll.codec.search import Unstorable, find_unstorable

__all__ = [
    "FORMAT_VERSION",
    "RefReader",
    "RefWriter",
    "Unstorable",
    "count_plain_rollouts",
    "decode",
    "encode",
    "encode_into",
    "find_unstorable",
    "register",
]
