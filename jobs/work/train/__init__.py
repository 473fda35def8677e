"""Training of a language model: the loop that every engine with a trainer shares."""
