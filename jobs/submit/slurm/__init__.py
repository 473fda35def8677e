"""The client of Slurm: calls of its commands, accounting, the chain of stages, messages in the logs of jobs."""
