"""Checkpoint directories of all engines: complete or absent, with checksums, copied on nodes, loaded as data."""
