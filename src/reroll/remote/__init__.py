"""The verbs of a buffer across a boundary, whatever carries them: a socket, an actor.

verbs      which verbs there are, and their arguments by name, plain enough to be written as bytes
values     arguments and results as bytes
groups     groups as bytes, one blob each, on their way in and on their way out
failures   errors as bytes, and as the same classes again
starting   calls that are carried out at once, unless they wait
memory     how a process that does nothing but hold a buffer treats its memory

Nothing here waits, connects or decides.
"""
