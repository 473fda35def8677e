"""Trials of a tuning campaign: one configuration in turns with the baseline, a file of them, and changed code."""
