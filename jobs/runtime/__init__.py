"""TODO jobs/runtime."""
