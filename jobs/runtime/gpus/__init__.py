"""The GPUs of a rank: which it may use, their memory, limits and counters."""
