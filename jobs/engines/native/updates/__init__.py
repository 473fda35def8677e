"""The arithmetic of an update, with torch: optimizers that torch does not have, groups with decay, and an average."""
