"""Proposers: which configurations to try next, by prediction, a Gaussian process, a bracket, or measured reasons."""
