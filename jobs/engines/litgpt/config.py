"""LitGPT's configuration of a model, with what it does not have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litgpt.config import Config

from jobs.files import read_yaml


@dataclass
class OwnConfig(Config):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's configuration with the fields of jobs.engines.litgpt.names.own_fields."""

    attention_sinks: bool = False
    """Model.attention_sinks."""
    router_bias: bool = False
    """Add a bias to the router of experts."""
    swiglu_limit: float | None = None
    """Model.swiglu_limit."""
    latent: dict[str, Any] | None = None
    """Sizes of multi-head latent attention, and the factor of its scores."""
    router: dict[str, Any] | None = None
    """Router by scores of all experts."""
    norm_rotated: bool = False
    """Model.norm_rotated."""
    chunked_window: bool = False
    """Model.chunked_window."""
    rope_in_windows: bool = False
    """Model.rope_in_windows."""
    query_temperature: dict[str, Any] | None = None
    """Model.query_temperature."""
    experts_every: int = 1
    """Model.experts_every."""

    def __post_init__(self) -> None:
        """Let the rotary table be that of the rotated part of a head."""
        super().__post_init__()
        if self.latent is not None:
            self.rope_n_elem = self.latent["rope_head_size"]


def read_config(path: Path) -> OwnConfig:
    """Return the configuration of a model_config.yaml; LitGPT's reader would wait for a FIFO, and expand any alias."""
    return OwnConfig(**read_yaml(path))
