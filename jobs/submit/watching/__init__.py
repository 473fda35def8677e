"""A sweep while it runs: the live table, progress, the output of ranks, curves for TensorBoard."""
