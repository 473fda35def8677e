"""The configuration values: Hydra groups of YAML files, found as pkg://conf from a checkout or a wheel."""
