"""Records and payloads outside of the process: one SQLite file, for a durable store and for a snapshot alike.

    files     how SQLite opens files, what its errors mean, and the schema
    lock      one writer for a directory, and files that must stay in place
    commits   the last acknowledged commit, counted outside of the log
    records   changes to SQL, and verified reads
    durable   a database that is written all the time, by one thread with group commit
    snapshot  a database as a whole, written aside and renamed

The store knows nothing about its records, except how its view for the sqlite3 shell shows rows.
"""

from reroll.store.durable import Store, open_store
from reroll.store.files import COLUMNS, FILE_NAME, ROW, find_saved, write_error
from reroll.store.records import MAX_PAYLOAD_BYTES, Blob, Change, Reader, Record, Saved, open_saved
from reroll.store.snapshot import copy_of, write_snapshot

__all__ = [
    "COLUMNS",
    "FILE_NAME",
    "MAX_PAYLOAD_BYTES",
    "ROW",
    "Blob",
    "Change",
    "Reader",
    "Record",
    "Saved",
    "Store",
    "copy_of",
    "find_saved",
    "open_saved",
    "open_store",
    "write_error",
    "write_snapshot",
]
