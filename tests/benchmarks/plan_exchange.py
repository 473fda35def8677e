"""Time to unpickle what ranks exchange for a checkpoint: `python -m tests.benchmarks.plan_exchange`.

For each checkpoint rank 0 receives from every rank its plan and the results of its writing, as pickles that are read as
data (jobs.runtime.data_pickles). Tensors of a Llama-2-70B and of its AdamW lie on the meta device, sharded over the
ranks; the plan is the one that torch makes for rank 0.
"""

from __future__ import annotations

import argparse
import io
import pickle
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from litgpt.config import Config
from litgpt.model import GPT
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from jobs.engines.native.checkpoint import FLAT
from jobs.runtime.data_pickles import DataUnpickler, Sealed


def state_of(layers: int, ranks: int) -> dict[str, Any]:
    """Return the state that rank 0 saves, on the meta device."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    with torch.device("meta"):
        gpt = GPT(Config.from_name("Llama-2-70b-hf", n_layer=layers))
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp_shard",))
    for block in gpt.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(gpt, mesh=mesh)
    optimizer = torch.optim.AdamW(gpt.parameters())
    for parameter in gpt.parameters():
        averages = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.zeros(()), **averages}
    weights, moments = get_state_dict(gpt, optimizer, options=FLAT)
    return {"model": weights, "optimizer": moments, "step": torch.tensor(1)}


def timed(reader: Callable[[io.BytesIO], Any], data: bytes) -> float:
    """Return the seconds of processor time of the fastest of three readings."""
    took = []
    for _ in range(3):
        began = time.process_time()
        reader(io.BytesIO(data)).load()
        took.append(time.process_time() - began)
    return min(took)


def main() -> None:
    """Print bytes and seconds of one rank and of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--layers", type=int, default=80)
    args = parser.parse_args()
    planner = DefaultSavePlanner()
    planner.set_up_planner(state_of(args.layers, args.ranks), is_coordinator=False)
    plan = planner.create_local_plan()
    info = _StorageInfo("__0_0.distcp", 0, 1 << 20)
    written = [
        WriteResult(MetadataIndex(item.index.fqn, item.index.offset, item.index.index), 1 << 20, info)
        for item in plan.items
    ]
    for what, value in (("plan", plan), ("results", written)):
        sealed = io.BytesIO()
        Sealed(b"key", sealed).dump(value)
        pickled = pickle.dumps(value)
        found = {
            "sealed, as ranks do": timed(partial(Sealed, b"key"), sealed.getvalue()),
            "unpickler in Python": timed(DataUnpickler, pickled),
            "unpickler in C, unchecked": timed(pickle.Unpickler, pickled),
        }
        print(f"{what}: {len(plan.items)} items, {len(pickled) / 1e6:.2f} MB a rank, {args.ranks} ranks")
        for how, seconds in found.items():
            print(f"    {how}: {seconds * args.ranks:.2f} s")


if __name__ == "__main__":
    main()
