"""Predictions for a run, by arithmetic on its configuration: no torch, no cluster."""
