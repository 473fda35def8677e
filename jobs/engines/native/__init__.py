"""TODO jobs/engines/native."""
