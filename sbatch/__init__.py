"""Static batch scripts, shipped with the package, that a person can also submit by hand."""
