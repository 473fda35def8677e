"""Read a training on images: it records the steps of any training."""

from analysis.load.kinds.train import read

__all__ = ["read"]
