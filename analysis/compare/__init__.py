"""One set of runs against another: A/B pairs, a reference table, a campaign with its rules, published results."""
