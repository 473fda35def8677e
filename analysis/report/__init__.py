"""TODO analysis/report."""
