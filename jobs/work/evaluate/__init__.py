"""Evaluation of given or trained weights on held-out samples."""
