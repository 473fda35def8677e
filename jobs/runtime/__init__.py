"""What a running rank uses whatever its engine: record, watchdog, process group, pace, checkpoint directories."""
