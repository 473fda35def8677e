"""Engines execute training steps: torch's own parallelism (native), Megatron, LitGPT's scripts, DeepSpeed's ZeRO."""
