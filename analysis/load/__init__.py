"""TODO analysis/load."""
