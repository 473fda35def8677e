"""Megatron-core and NeMo on a CPU with gloo, for tests: every touch of CUDA becomes one of the CPU's.

It does not model NeMo's speed or memory on GPUs, and does nothing on a machine with CUDA. `python cpu_shim.py -m MODULE
...` is `python -m MODULE ...` under it: a test's job runs it beside the submitted code: it imports nothing of `tests`.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import types
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class NoStream:
    """A CUDA stream or event where nothing is asynchronous."""

    cuda_stream = 0

    def __init__(self, *_arguments: object, **_keywords: object) -> None:
        pass

    def __enter__(self) -> NoStream:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def record_event(self) -> NoStream:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_arguments, **_keywords: True


class OnCpu(TorchFunctionMode):
    """Reads device="cuda" as the CPU, pins no memory, and calls a FloatTensor a GPU's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        answer = func(*(on_cpu(argument) for argument in args), **kwargs)
        # Megatron asks its parameters and gradients whether they are a GPU's.
        return answer.replace("torch.", "torch.cuda.") if func is torch.Tensor.type and len(args) == 1 else answer


def on_cpu(argument: Any) -> Any:
    """The CPU for the name of a GPU."""
    return "cpu" if isinstance(argument, str | torch.device) and str(argument).startswith("cuda") else argument


def install() -> None:
    """Turn Megatron, NeMo and this project's NeMo engine to the CPU, in this process and those it forks."""
    if torch.cuda.is_available():
        return
    shim_torch()
    shim_megatron()
    shim_nemo()
    from jobs.engines.nemo import train

    train.refuse_without_gpu = lambda: None


def shim_torch() -> None:
    """torch.cuda, and tensors that are sent to it."""

    cuda: Any = torch.cuda
    # A function for each name: torch.compile looks them up by identity.
    for name in ("synchronize", "set_device", "empty_cache", "reset_peak_memory_stats", "manual_seed",
                 "manual_seed_all", "set_rng_state"):  # fmt: skip
        setattr(cuda, name, lambda *_arguments, **_keywords: None)
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, lambda *_: NoStream())
    for name in ("memory_allocated", "max_memory_allocated"):
        setattr(cuda, name, lambda *_: 0)
    cuda.current_device = lambda: "cpu"
    cuda.get_rng_state = lambda *_: torch.get_rng_state()
    cuda.Stream = cuda.Event = NoStream
    cuda.stream = lambda _stream=None: contextlib.nullcontext()
    for kind in (torch.Tensor, torch.nn.Module):
        setattr(kind, "cuda", lambda self, *_arguments, **_keywords: self)  # noqa: B010 (typed, a plain assignment is an error)
    mode: Any = OnCpu()
    mode.__enter__()


def shim_megatron() -> None:
    """Megatron-core's random states, and its distributed optimizer where torch's AdamW stands in for the GPU's."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.tensor_parallel import layers, random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    # The router's product, which Megatron does not define without Transformer Engine.
    moe_utils.te_general_gemm = None
    # Numbers of tokens for the host, which Megatron would read from a GPU.
    token_dispatcher.maybe_move_tensor_to_cpu = on_host
    # The result of a matrix without TP is a view, to which Megatron's experts would add their bias in place.
    reduced = layers.reduce_from_tensor_model_parallel_region
    layers.reduce_from_tensor_model_parallel_region = lambda *given, **named: reduced(*given, **named).clone()

    random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    random._set_cuda_rng_state = lambda *_, **__: None
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()

    state_dict = DistributedOptimizer.state_dict

    def state_dict_of_any_step(self: Any) -> Any:
        # torch's AdamW has no state before its first step, and Megatron reads the step from there to load it.
        if not self.optimizer.state:
            self._init_optimizer_states_with_dummy_values()
        return state_dict(self)

    set_states = DistributedOptimizer._set_main_param_and_optimizer_states

    def set_states_but_step(self: Any, model_param: Any, tensors: Any) -> None:
        # The GPU's AdamW counts steps by group, and that is all a checkpoint has. Megatron has given every
        # parameter that number, in one tensor, which each of them would count up.
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        state["step"] = state["step"].clone()
        set_states(self, model_param, tensors | {"step": state["step"]})

    DistributedOptimizer.state_dict = state_dict_of_any_step
    DistributedOptimizer._set_main_param_and_optimizer_states = set_states_but_step


def on_host(tensor: torch.Tensor | None, *, as_numpy: bool = False, **_ignored: object) -> Any:
    """The tensor, or its numbers as the array that Megatron copies from a GPU."""
    return tensor if tensor is None or not as_numpy else tensor.numpy()


def shim_nemo() -> None:
    """NeMo's adapters, which take Megatron's placeholders for Transformer Engine; its loading; Lightning's signal."""
    from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
    from nemo.collections.llm.peft import lora, utils
    from nemo.lightning.io import pl

    class Never:
        pass

    lora.te = types.SimpleNamespace(Linear=Never, LayerNormLinear=Never, pytorch=types.SimpleNamespace(Linear=Never))
    utils.HAVE_TE = False
    pl._fix_tensors_device = lambda checkpoint: checkpoint
    # A broadcast of every step, in which two ranks over gloo have been seen to hang.
    setattr(_TrainingEpochLoop, "_broadcast_sigterm_tensor", lambda _: None)  # noqa: B010 (typed, as above)


if __name__ == "__main__":
    install()
    del sys.argv[: sys.argv.index("-m") + 1]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
