"""Paths in, RunResults out: discover what a folder contains, read run directories and logs."""
