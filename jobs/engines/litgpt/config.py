"""LitGPT's configuration of a model, with what it does not have."""

from __future__ import annotations

from dataclasses import dataclass

from litgpt.config import Config


@dataclass
class OwnConfig(Config):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's configuration with the fields of jobs.engines.litgpt.names.own_fields."""

    attention_sinks: bool = False
    """Model.attention_sinks."""
    router_bias: bool = False
    """Whether the router of experts has a bias."""
    swiglu_limit: float | None = None
    """Model.swiglu_limit."""
