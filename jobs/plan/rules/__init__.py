"""TODO jobs/plan/rules."""
