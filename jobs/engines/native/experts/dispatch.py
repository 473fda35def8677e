"""Expert parallelism: a rank holds a part of each layer's experts, and tokens travel to theirs and back.

EP ranks are data-parallel ranks. E of them divide the experts of a layer, and all E send each other the tokens of their
experts (GShard, https://arxiv.org/abs/2006.16668): an all-to-all of the counts, which the host waits for once per
layer, one of the rows, and one of the results. FSDP shards an expert over the other ranks of its shard group, and
the rest of the weights over all of them.

Gradients: an expert's is a sum over the tokens of E ranks, and FSDP averages it over 1/E of the ranks that it averages
other gradients over, so it has to be divided by E (jobs.engines.native.trainer).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from litgpt.model import GPT
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh

from jobs.engines.native.experts.mixture import Compute, Experts, Mixture, permuted
from jobs.engines.native.model import layers


class Dispatch:
    """Bring rows to the ranks of their experts and back; every rank of the group calls it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __call__(self, compute: Compute, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the results of rows (n, hidden) that are ordered by expert; counts (experts,) are the rows of each."""
        ranks = self.group.size()
        # (experts,) of this rank's rows -> (ranks, experts / ranks): rows of this rank's experts from each rank
        arriving = all_to_all_single(counts, None, None, self.group).view(ranks, -1)
        by_rank = torch.stack([counts.view(ranks, -1).sum(1), arriving.sum(1)])
        sent, received = by_rank.tolist()
        rows = all_to_all_single_autograd(rows, received, sent, self.group)
        # What arrives is ordered by rank, and then by expert.
        expert_of = torch.arange(arriving.shape[1], device=rows.device).repeat(ranks)
        order = expert_of.repeat_interleave(arriving.flatten(), output_size=sum(received)).argsort(stable=True)
        results = permuted(compute(permuted(rows, order), arriving.sum(0)), order.argsort())
        return all_to_all_single_autograd(results, sent, received, self.group)


def apply_ep(gpt: GPT, mesh: DeviceMesh) -> None:
    """Keep this rank's part of each layer's experts, in place; the kept ones keep their names."""
    for mixture in (layer.mlp for layer in layers(gpt) if isinstance(layer.mlp, Mixture)):
        share = len(mixture.experts) // mesh.size()
        first = mesh.get_local_rank() * share
        own = {str(i): mixture.experts[str(i)] for i in range(first, first + share)}
        mixture.experts = Experts(own, mixture.experts.limit)
        mixture.through = Dispatch(mesh.get_group())
