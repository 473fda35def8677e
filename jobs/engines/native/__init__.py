"""LitGPT's model under torch's own parallelism: one file per technique, in the order of parallelize.py."""
