"""Places in programs: what a program was doing when it raised, by the frames of a traceback.

An exception whose text the catalogue does not have may fit several causes by its type, but not by its place. A package
that raises while it is imported does not fit the environment; the check of a configuration refuses a setting; below a
model's `forward` the program itself is wrong.
"""

from __future__ import annotations

import re

from jobs.failure_causes import FailureCause

C = FailureCause

# The innermost frame checks a configuration or the arguments of a command (argparse, yacs, mmengine's registry, Hydra).
CHECKS = re.compile(
    r'(?i)[/"]\w*(?:config|configuration|arguments?|args|arg_?parser|hparams|options|flags|hydra|argparse)\w*\.py"'
    r"|, in (?:__post_init__|build_from_cfg|merge_from_\w+|_merge_a_into_b|\w+_validation"
    r"|\w*(?:validate|check|verify|parse)\w*(?:config|cfg|arg|param|option|setting)\w*)$"
)
# The innermost frame is the body of an installed module: the package raised while it was imported.
IMPORTS = re.compile(r'/(?:site|dist)-packages/[^"]*", line \d+, in <module>$')
# The innermost frame compiles or loads an extension.
BUILDS = re.compile(
    r'(?:torch/utils/cpp_extension|op_builder/\w+|triton/(?:runtime/build|backends/\w+/driver)|ctypes/__init__)\.py"'
)
# A frame of the model, the loss, the optimizer or the input pipeline. Whatever it calls computes, too.
COMPUTES = re.compile(
    r", in (?:forward|backward|_(?:wrapped_)?call_impl|training_step|train_step|compute_\w*loss\w*|__getitem__"
    r"|\w*collate\w*|optimizer_step|training_loop)$"
    r'|/torch/(?:nn/(?:modules|functional)|autograd/|_tensor|optim/|functional)[^"]*"|/modeling_\w+\.py"'
)
# What an assertion without a sentence asks for: settings, files, sizes that divide each other, GPUs.
ASSERTED = (
    (C.launch_failure, re.compile(r"\bcuda\.(?:is_available|device_count)\(|\bis_\w+_available\(")),
    (C.refused, re.compile(r"\bassert .*\b(?:\w*args|\w*config|cfg|conf|hparams|opts?|flags|FLAGS)[.\[]")),
    (C.refused, re.compile(r"\bassert (?:not )?(?:os\.path\.\w+|\w*(?:path|dir|file)\w*\.(?:exists|is_\w+))\(")),
    (C.refused, re.compile(r"\bassert (?!.*(?:len\(|shape|size\()).* % .* == 0\b")),
)
PLACES = ((C.refused, CHECKS), (C.launch_failure, IMPORTS), (C.launch_failure, BUILDS))


def cause_by_place(frame: str) -> FailureCause | None:
    """Return the cause that the innermost frame of a traceback, or the assertion below it, shows; else None."""
    place, _, source = frame.partition("\n")
    by_source = next((cause for cause, pattern in ASSERTED if pattern.search(source)), None)
    return by_source or next((cause for cause, pattern in PLACES if pattern.search(place)), None)
