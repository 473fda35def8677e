"""NeMo 2 with Megatron-core: a run as a NeMo recipe, its data, record, weights and checkpoints."""
