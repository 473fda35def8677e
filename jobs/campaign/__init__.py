"""TODO jobs/campaign."""
