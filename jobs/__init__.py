"""Everything before, while and around a run: composing, planning, submitting and training."""
