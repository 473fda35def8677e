"""Checkpoint directories of all engines: complete or absent, with checksums, loaded as data."""
