"""NeMo 2 with Megatron-core: a run as NeMo's own recipe, its data, record, weights; only support.py needs neither."""
