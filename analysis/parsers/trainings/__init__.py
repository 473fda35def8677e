"""Logs of training programs."""
