"""A sweep on disk: its ledger and submissions that no interruption loses, where it is, lists, notes, removal."""
