"""Parts of a running rank that all engines share: record, watchdog, process group, pace, checkpoint directories."""
