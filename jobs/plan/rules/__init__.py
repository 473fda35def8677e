"""Rules that a run must satisfy before it is prepared: values, layout, batch, stages, contest, and each engine."""
