"""TODO analysis/scaling."""
