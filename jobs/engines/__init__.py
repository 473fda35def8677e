"""How a training step is executed: one file per technique, applied in one visible order in parallelize.py."""
