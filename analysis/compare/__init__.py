"""TODO analysis/compare."""
