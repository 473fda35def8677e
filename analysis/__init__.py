"""Everything after a run: from what run directories hold to a table, figures and a report."""
