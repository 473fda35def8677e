"""TODO analysis/report/figures."""
