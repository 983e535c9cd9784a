"""The conformance suite of buffers, by what is tested.

hooks            how the tests get a buffer
builders         rollouts, groups and questions
wrong_calls      what must be refused
puts, hand_out, limits, bounds, look_and_change, samplers    one call at a time
drops            reports of groups that leave untrained
rolled_again     groups that come back as copies, or under a lease
versions         which weights serve
intervals        metrics since the previous call of a reader
shared           what a holder of a sample may change
waiting          calls that overlap
"""
