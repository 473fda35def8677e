"""Which configuration is best: searches by prediction and by runs, and campaigns of pairs with a baseline."""
