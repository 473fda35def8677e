"""What a run directory contains before a job starts: provenance, code, container, environment, batch script."""
