"""Micro-batches decoded, cropped, resized and mirrored by NVIDIA DALI (images.decoder=dali), on the GPU of a rank.

Order, crops and mirrors are those of the workers of the loader, so restarts are as exact as with Pillow. DALI decodes
the crop alone and some batches ahead of the rank, by its CPU operators where the rank has no NVIDIA GPU. Its linear
filter is Pillow's, but sees no pixels outside of a crop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
import nvidia.dali
import torch
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from torch.utils.dlpack import from_dlpack

from jobs.settings.images import ImageTraining
from jobs.work.images.decoding import Batch, Encoded, decoded, opened


def decode(
    encoded: Iterable[Encoded], settings: ImageTraining, batch_size: int, device: torch.device
) -> Iterator[Batch]:
    """Yield micro-batches with their pixels on the device; raise DataError for an image that cannot be decoded."""
    fed: deque[Encoded] = deque()

    def inputs() -> Iterator[tuple[object, ...]]:
        for batch in encoded:
            fed.append(batch)
            begins, ends = np.split(batch.boxes.numpy(), 2, axis=1)
            # Decoded are whole pixels; a crop of a held-out image may begin and end within one.
            first = np.floor(begins)
            yield batch.jpegs, first, np.ceil(ends) - first, begins - first, ends - first, batch.mirrored.numpy()

    pipeline = Pipeline(batch_size, num_threads=max(1, settings.workers), device_id=gpu(device))
    with pipeline:
        jpegs, first, shape, begin, end, mirrored = fn.external_source(inputs(), num_outputs=6)
        images = fn.decoders.image_slice(
            jpegs, first, shape, axis_names="WH", normalized_anchor=False, normalized_shape=False,
            device="cpu" if gpu(device) is None else "mixed", output_type=types.RGB,
            # As Pillow: the crop is of the image as it is stored, and colours are interpolated between pixels.
            adjust_orientation=False, jpeg_fancy_upsampling=True,
        )  # fmt: skip
        images = fn.resize(
            images, roi_start=fn.stack(begin[1], begin[0]), roi_end=fn.stack(end[1], end[0]),
            size=[settings.size] * 2, interp_type=types.INTERP_LINEAR,
        )  # fmt: skip
        pipeline.set_outputs(fn.flip(images, horizontal=mirrored))
    # DALI keeps the memory of a batch until the rank's stream has used it.
    stream = None if gpu(device) is None else torch.cuda.current_stream(device)
    while True:
        try:
            (pixels,) = pipeline.run(stream)
        except StopIteration:
            return
        except RuntimeError:
            # It names neither file nor image.
            refuse_damaged(fed)
            raise
        batch = fed.popleft()
        # By DLPack: no copy, neither on the host nor on the GPU.
        yield Batch(from_dlpack(pixels.as_tensor()), batch.labels, batch.position)


def gpu(device: torch.device) -> int | None:
    """Return the number of the rank's NVIDIA GPU; None if DALI decodes on processors."""
    return device.index if device.type == "cuda" and torch.version.cuda else None


def name(device: torch.device) -> str:
    """Return the version of DALI and what it decodes on."""
    return f"DALI {nvidia.dali.__version__} on {'processors' if gpu(device) is None else 'the GPU'}"


def refuse_damaged(batches: Iterable[Encoded]) -> None:
    """Raise DataError for the first image that Pillow cannot decode either."""
    for batch in batches:
        for place, jpeg in zip(batch.names, batch.jpegs, strict=True):
            decoded(opened(jpeg.tobytes(), place), place)
