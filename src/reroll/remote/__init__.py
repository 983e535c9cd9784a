"""A buffer in another process: the same verbs, results and errors, over any carrier of frames.

protocol    messages between a client and the process that hosts the buffer, and their framing
methods     the table of verbs, and their arguments by name as plain values
values      arguments, results and errors as bytes
groups      groups as bytes, on their way in and out

client      RemoteBuffer: the verbs of ReplayBuffer for asyncio; BlockingRemoteBuffer: the same for threads
sharded     ShardedBuffer: several remote buffers, each one shard, as one buffer
draws       deliveries from several shards: offers, splits and leases
connection  calls of one client: sent in batches, repeated until a reply arrives, kept alive by heartbeats

host        the clients of one buffer: messages in, replies out, sessions that begin and end
session     one client: each call is executed once, its reply is kept until the client received it
dispatcher  the function that executes each verb
shard       a shard's part of a configuration, and the verbs that a sharded buffer asks of it
eager_task  coroutines that run without a task until they wait
malloc      allocator settings for a process that only hosts a buffer

No module here knows what moves the frames: `reroll.server` does, over ZeroMQ, and `reroll.ray`, through actors.
"""
