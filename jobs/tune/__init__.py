"""`slurmscale tune`: the best configuration of a space within a budget, by runs of ordinary sweeps."""
