"""Rules that a run must satisfy before preparation: values, data, layout, batch, stages, contest, and each engine."""
