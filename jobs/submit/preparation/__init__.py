"""The contents of a run directory before its job starts: provenance, code, container, environment, lines of scripts."""
