"""Results of benchmarks: collectives, storage, serving."""
