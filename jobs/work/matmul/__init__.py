"""Matrix products on every rank: the rate of the slowest."""
