"""The chunks in which engine=native computes the loss: the labels whose logits are in memory at a time."""

from __future__ import annotations

from jobs.layout import has_gpus
from jobs.schema import Loss, Run

LEAST_CHUNK, USUAL_CHUNK, MOST_CHUNK = 1024, 4096, 8192
"""Labels of a chunk of the loss: on CPUs, on GPUs of unknown memory, and where a larger one saves nothing."""
LOGITS_SHARE = 1 / 16
"""Share of a GPU's memory for the logits of a chunk."""


def loss_chunk(run: Run) -> int | None:
    """Return the labels whose logits are in memory at a time; None: those of all positions (engine.loss=whole).

    By default, GPUs compute the loss of a micro-batch in chunks where it is more than one. A z-loss is computed in
    chunks only, whose gradients it scales: it takes no memory then.
    """
    size = chunk_size(run)
    if run.job.z_loss:
        return size
    if run.engine.loss is None and has_gpus(run):
        return size if run.job.micro_batch_size * run.job.row_length > size else None
    return size if run.engine.loss is Loss.chunked else None


def chunk_size(run: Run) -> int:
    """Return the labels of a chunk: each adds to the whole gradient of the head's weight, so as many as memory allows.

    On GPUs a power of two.
    """
    if not has_gpus(run):
        return LEAST_CHUNK
    if run.gpu.memory_gb is None:
        return USUAL_CHUNK
    # In float32, with the 16 bits they are cast from or with their log-softmax: 4 + 4 at most, since each is freed once
    # the next exists (jobs.engines.native.loss).
    label_bytes = (4 + 4) * run.model.vocab_size / run.parallelism.tensor
    fitting = int(LOGITS_SHARE * run.gpu.memory_gb * 1e9 / label_bytes)
    return 1 << min(max(fitting, LEAST_CHUNK), MOST_CHUNK).bit_length() - 1
