"""Mixtures of experts, and the parallelism that divides them over ranks."""
