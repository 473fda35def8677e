"""What can be said of a run before it starts, by arithmetic alone: legality, cost."""
