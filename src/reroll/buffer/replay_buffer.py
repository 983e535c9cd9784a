"""ReplayBuffer: the asyncio shell. It checks arguments and waits; what happens is decided below it."""

from reroll.buffer.changing import Changing
from reroll.buffer.handing import HandingOut
from reroll.buffer.looking import Looking
from reroll.buffer.putting import Putting
from reroll.buffer.saving import Saving


class ReplayBuffer(Putting, HandingOut, Changing, Saving, Looking):
    """Groups of rollouts, per task, with status, policy versions and staleness. Made by `ReplayBufferConfig.build()`.

    All methods but `len()` are coroutines. Arguments are checked before anything changes, on the buffer and on the
    caller's objects; cancelling any call loses and duplicates nothing. Where groups are kept on disk, a put that is
    cancelled while it is being written may be stored: repeated with its `put_id`, it is stored once. After `close()` every
    call raises Closed.
    """
