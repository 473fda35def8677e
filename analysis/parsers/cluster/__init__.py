"""Lines that launchers, Slurm, NCCL and GPUs print besides the program."""
