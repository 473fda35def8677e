"""TODO analysis/metrics."""
