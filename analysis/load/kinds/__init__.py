"""The reader of each kind of work (jobs.work): `read` of the file of this name completes what all runs have."""
