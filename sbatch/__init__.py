"""The batch scripts: static shell bodies that a person can also run by hand, shipped with the package."""
