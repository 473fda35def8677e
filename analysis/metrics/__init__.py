"""Numbers of one run: MFU, goodput, cost, energy, stragglers, communication, step-time variation, checkpoints."""
