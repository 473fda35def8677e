"""Programs of other people: ranks that start them, watch them, and read how they ended."""
