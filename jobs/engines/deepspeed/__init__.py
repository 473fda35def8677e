"""DeepSpeed's ZeRO over LitGPT's model: its partitions, optimizer step and checkpoints, with our data and record."""
