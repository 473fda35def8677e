"""TODO analysis/report/export."""
