"""NeMo's engine on a CPU: the shim that makes Megatron run there, and how tests start its ranks."""
