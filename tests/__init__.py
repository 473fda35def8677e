"""The tests; they mirror the packages. Behaviour only, with real processes, files and a real Slurm."""
