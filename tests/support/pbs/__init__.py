"""A stand-in for PBS: programs with the texts, JSON and exit codes of a recorded OpenPBS, starting processes."""
