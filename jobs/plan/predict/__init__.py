"""What a run will need, by arithmetic on its configuration: no torch, no cluster."""
