"""Before a run starts, by arithmetic alone: composing, legality, cost, and the plan that people read."""
