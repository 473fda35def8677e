"""The node of a rank: its system, load, use, power and file systems."""
