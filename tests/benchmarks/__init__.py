"""Benchmarks: commands that print their figures; none is a test."""
