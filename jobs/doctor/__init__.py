"""`slurmscale doctor`: checks of a cluster, of a run on it and of its nodes, before a job is submitted."""
