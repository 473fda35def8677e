"""TODO analysis/logs."""
