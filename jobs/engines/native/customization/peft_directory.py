"""A directory for Hugging Face's PEFT with trained adapters or virtual tokens, in its two files.

https://huggingface.co/docs/peft/developer_guides/checkpoint describes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from jobs.errors import CheckpointError
from jobs.output import write_file

DIRECTORY = "peft"
WEIGHTS = "adapter_model.safetensors"


def write_peft(export: Path, named: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write weights under PEFT's names and its adapter_config.json into an export."""
    directory = export / DIRECTORY
    directory.mkdir()
    # An open file raises OSError if it cannot be written, and not an error of the library's own.
    (directory / WEIGHTS).write_bytes(save(dict(named)))
    common = {"task_type": "CAUSAL_LM", "inference_mode": True}
    write_file(directory / "adapter_config.json", json.dumps({**config, **common}, indent=2))


def read_peft(export: Path) -> dict[str, Tensor]:
    """Return the weights of an export's directory for PEFT; raise CheckpointError if they cannot be read."""
    path = export / DIRECTORY / WEIGHTS
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
