"""Signatures of settings that a program refuses: command lines, configurations, layouts, models that do not exist."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

SETTINGS = (
    *signatures(
        "argparse, jsonargparse, click, absl, transformers.HfArgumentParser",
        (C.refused, W.end, r"\berror: (?:unrecognized arguments|argument |the following|one of the|ambiguous)",
         ("error: unrecognized", "error: argument", "error: the following", "error: one of", "error: ambiguous")),
        (C.refused, W.end, r"(?:\berror: |ArgumentParser - ERROR - )'?(?:Parser key|Configuration check failed|"
         r"Key [\"']|Problem with|Validation failed|No action for |Option '[^']*' is not accepted)",
         ("error: ", "ArgumentParser - ERROR")),
        (C.refused, W.end, r"^Error: (?:No such option|Invalid value for|Missing (?:option|argument|parameter))",
         ("Error: ",)),
        (C.refused, W.end, r"FATAL Flags parsing error", ("FATAL Flags",)),
        (C.refused, W.end, r"Some (?:specified arguments|keys) are not used by the HfArgumentParser",
         ("HfArgumentParser",)),
    ),
    *signatures(
        "https://github.com/facebookresearch/hydra (hydra/_internal), https://github.com/omry/omegaconf",
        (C.refused, W.end, r"^(?:Could not override '|In '[^']*': (?:Could not find|Validation error)|"
         r"Key '[^']*' (?:is not in struct|not in ')|You must specify '|Primary config (?:module|directory) |"
         r"Cannot find primary config|Could not load '|Error merging override |Error parsing override '|"
         r"Ambiguous value for option '|Multiple values for )",
         ("Could not override", "In '", "is not in struct", "' not in '", "You must specify", "rimary config",
          "Could not load", "Error merging override", "Error parsing override", "Ambiguous value for",
          "Multiple values for")),
        (C.refused, W.end, r"^(?:omegaconf|hydra)\.errors\.\w+: |Accessing unknown key in a struct",
         ("omegaconf.errors", "hydra.errors", "unknown key in a struct")),
    ),
    *signatures(
        "https://github.com/pydantic/pydantic, https://github.com/pydantic/pydantic-core",
        (C.refused, W.end, r"^(?:[\w.]+\.)?(?:ValidationError: )?\d+ validation errors? for \w+",
         ("validation error",)),
    ),
    *signatures(
        "https://github.com/deepspeedai/DeepSpeed (runtime/config.py), https://github.com/NVIDIA/Megatron-LM "
        "(megatron/training/arguments.py), https://github.com/NVIDIA/nccl (src/init.cc)",
        (C.refused, W.end, r"Error: (?:Check batch related parameters\.|"
         r"(?:world size|global batch size) \([^)]*\) is not divisible by)",
         ("Check batch related", "is not divisible by")),
        (C.refused, W.end, r"Duplicate GPU detected", ("Duplicate GPU detected",)),
    ),
    *signatures(
        "https://github.com/huggingface/transformers (utils/hub.py), https://github.com/huggingface/huggingface_hub",
        (C.refused, W.end, r"is not a local folder and is not a valid model identifier|"
         r"^(?:[\w.]+\.)?(?:GatedRepoError|RepositoryNotFoundError|HFValidationError)\b",
         ("is not a local folder", "GatedRepoError", "RepositoryNotFoundError", "HFValidationError")),
    ),
)  # fmt: skip
