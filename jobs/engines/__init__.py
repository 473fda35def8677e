"""Engines execute training steps: torch's own parallelism (native), Megatron (nemo), LitGPT's scripts (litgpt)."""
