"""Training of added parameters with all weights frozen: adapters (LoRA, QLoRA), prompt tuning, P-tuning."""
