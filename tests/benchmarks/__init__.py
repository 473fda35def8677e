"""Benchmarks: commands that print their results; none is a test."""
