"""Spare nodes of a Slurm job: the run goes on without the node that failed, inside its job."""
