"""Which rows of a pool come next: one interface for samplers and removers.

selector     the interface, and what a pick tells
specs        what users write: Fifo() ... Mixture(), and their names in configuration files
chunks       a sorted collection of keys       ordered      selectors that leave nothing to chance
dense        a set without gaps                uniform      every row with the same chance
tree         sums of weights                   prioritized  chances by weight, with decay
mixture      a share of fresh rows, the rest replayed
"""
