"""What launchers, Slurm, NCCL and GPUs print beside a program."""
