"""Shared parts of tests: made and real runs, small data, waiting, a Slurm and a NeMo on this machine."""
