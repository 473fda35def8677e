"""Lines that launchers, Slurm, NCCL and GPUs print beside a program."""
