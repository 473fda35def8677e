"""Runs as points and lines over rank counts: groups, scaling laws, layouts, MLPerf results, relative cost."""
