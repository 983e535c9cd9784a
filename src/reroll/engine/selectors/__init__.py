"""Selectors decide which rows of a pool come next; samplers and removers share one interface.

selector     the interface, and the result of a pick
specs        the specifications that users write: Fifo() ... Mixture(), and their names in configuration files
ordered      selectors without chance, on sorted keys
random       uniform draws, and mixtures of fresh and replayed rows
prioritized  draws by weight, with decay
tree         sums of weights for draws by weight
"""
