"""A server without a model and its load generator, for rehearsals and tests; their numbers measure nothing."""
