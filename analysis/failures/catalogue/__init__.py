"""The catalogue of failure signatures: the rows of texts.toml; the first one that matches a line counts."""

from importlib import resources

from analysis.failures.catalogue.table import Signature, Weight, read

__all__ = ["PARTS", "SIGNATURES", "Signature", "Weight"]

PARTS, SIGNATURES = read(resources.files("analysis.failures.catalogue").joinpath("texts.toml").read_text("utf-8"))
