"""Optimizers: one file each, with its construction, the size of its state and the cost of an update."""
