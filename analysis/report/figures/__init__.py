"""The figures of the page, one file each."""
