"""Profiles of a rank's steps, and what is read from a trace."""
