"""Failure causes of runs: the signatures that logs contain, the verdict drawn from them, and what sacct reports."""
