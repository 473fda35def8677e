"""Failing, slow and good hosts of a site, by the records of its runs."""
