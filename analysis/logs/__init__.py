"""Other programs' logs as runs: files, steps, restarts, models, facts, separate error streams."""
