"""Where rows and payloads live outside of the process: one SQLite file, for a durable store and for a checkpoint alike.

    schema       the tables, the format's number, and the check that a file holds exactly these
    change       what one commit writes; several changes become one
    seals        checksums over rows, facts, payloads and state
    connections  how files are opened, and what SQLite's errors mean
    closing      what is closed by leaving its `with`
    lock         one writer for a directory
    commits      how many commits were acknowledged, counted outside of the log
    in_place     whether the files are still those that were opened
    amending     rows that changed, kept together until they go or are written in place
    writing      changes to SQL, with the counts that tell what is missing
    reading      SQL to rows, facts, payloads and state, verified
    saved        a file to read, at rest or in use
    checkpoint   a file as a whole, written beside and renamed
    durable      a file that is written all the time, by one thread with group commit
    folding      its log into the file, in another thread

It knows nothing of what it stores: no status, no limit, no order but that of uids. Nothing that it reads is ever run.
"""

from reroll.store.change import MAX_PAYLOAD_BYTES, Blob, Change, Fact, Row
from reroll.store.checkpoint import write_checkpoint
from reroll.store.durable import Copy, Store, open_store
from reroll.store.saved import Saved, find_saved, open_saved
from reroll.store.schema import COLUMNS, FILE_NAME

__all__ = [
    "COLUMNS",
    "FILE_NAME",
    "MAX_PAYLOAD_BYTES",
    "Blob",
    "Change",
    "Copy",
    "Fact",
    "Row",
    "Saved",
    "Store",
    "find_saved",
    "open_saved",
    "open_store",
    "write_checkpoint",
]
