"""STOP or RESTART, for every end of a run."""
