"""TODO analysis/failures."""
