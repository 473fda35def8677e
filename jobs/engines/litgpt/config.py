"""LitGPT's configuration of a model, with fields for the arithmetic that LitGPT does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litgpt.config import Config

from jobs.files import read_yaml


@dataclass
class FurtherConfig(Config):  # type: ignore[misc]  # LitGPT publishes no types
    """A configuration whose model_config.yaml LitGPT refuses by the names of these fields.

    Without them a model has LitGPT's own class, so that LitGPT reads its export.
    """

    latent: dict[str, Any] | None = None
    """Sizes of multi-head latent attention, and the factor of its scores."""
    router: dict[str, Any] | None = None
    """Router by scores of all experts."""

    def __post_init__(self) -> None:
        """Let the rotary table be that of the rotated part of a head."""
        super().__post_init__()
        if self.latent is not None:
            self.rope_n_elem = self.latent["rope_head_size"]


def config_of(fields: Mapping[str, Any]) -> Config:
    """Return the configuration of jobs.engines.litgpt.names.litgpt_fields, or of what model_config.yaml contains."""
    return (FurtherConfig if {"latent", "router"} & fields.keys() else Config)(**fields)


def read_config(path: Path) -> Config:
    """Return the configuration of a model_config.yaml; LitGPT's reader would wait for a FIFO, and expand any alias."""
    return config_of(read_yaml(path))
