"""Benchmarks: commands that print their figures. None of them is a test."""
