"""`slurmscale doctor`: what a cluster offers, and whether our configuration fits it, before a job is sent."""
