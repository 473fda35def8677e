"""The keys of `images` (job=image_train), and the sizes of the networks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from jobs.ranges import Below1, Count, Range


class ImageNetwork(Enum):
    """Residual network with bottleneck blocks, version 1.5: the stride is in the 3x3 convolution."""

    resnet50 = "resnet50"
    """ResNet-50: 3, 4, 6 and 3 blocks."""
    resnet14 = "resnet14"
    """One block a stage, a quarter as wide: for tests on CPUs."""


class ImageDecoder(Enum):
    """A library that turns the JPEG files that the workers of the loader chose into pixels."""

    pillow = "pillow"
    """Pillow, in the workers."""
    dali = "dali"
    """NVIDIA DALI: on the GPU of a rank, and on processors where it has none."""


SIZES = {ImageNetwork.resnet50: ((3, 4, 6, 3), 64), ImageNetwork.resnet14: ((1, 1, 1, 1), 16)}
"""Blocks of each stage, and channels of the first convolution."""
EXPANSION = 4
"""Output channels of a block divided by its inner ones."""


@dataclass(kw_only=True)
class ImageTraining:
    """Training of an image classifier on JPEG files (job=image_train)."""

    network: ImageNetwork = ImageNetwork.resnet50
    """Residual network with bottleneck blocks, version 1.5: the stride is in the 3x3 convolution."""
    decoder: ImageDecoder = ImageDecoder.pillow
    """Library that decodes, crops, resizes and mirrors the images: pillow, or dali (NVIDIA DALI, the extra dali)."""
    path: str | None = None
    """Directory of .tar shards (WebDataset: KEY.jpg and KEY.cls) or of .rec files (MXNet's RecordIO); null: random
    images are made in the run directory, and removed when the run has finished."""
    validation_path: str | None = None
    """Directory of shards, as `path`, of images that no step trains on: the accuracy on them is measured after the last
    step; null: no validation."""
    validate_every_steps: Count | None = None
    """Steps between two validations; null: only after the last step."""
    count: Count = 512
    """Images that are made, in all files together."""
    shards: Count = 64
    """Files that are made."""
    mean_kb: Annotated[float, Range(1, 10_000)] = 115.0
    """Mean size of an image that is made, in kB; ImageNet's is 115."""
    classes: Count = 1000
    """Classes of the labels, which count from 0."""
    size: Annotated[int, Range(32, 4096)] = 224
    """Height and width of an image after augmentation, in pixels."""
    workers: Annotated[int, Range(0, 256)] = 4
    """Processes of each rank that read, decode and augment; 0: the rank does so itself. DALI decodes by as many
    threads."""
    prefetch: Count = 2
    """Batches that each worker has ready."""
    shuffle: Count = 256
    """Encoded images from which a worker draws the next one."""
    channels_last: bool = True
    """Keep the channels of a pixel together in memory (NHWC), as tensor cores want them."""
    momentum: Below1 = 0.9
    """Momentum of SGD."""
    label_smoothing: Below1 = 0.1
    """Share of a label that is spread over all classes."""
    storage: str | None = None
    """Label of the storage in tables and figures, such as "4 storage nodes"; null: none."""

    @property
    def packages(self) -> dict[str, str]:
        """Return the packages that decode, and the extra of pyproject.toml that brings each."""
        return {"PIL": "images"} | ({"nvidia.dali": "dali"} if self.decoder is ImageDecoder.dali else {})

    @property
    def directories(self) -> dict[str, str]:
        """Return the directories that the run reads images from, by their keys."""
        given = {"images.path": self.path, "images.validation_path": self.validation_path}
        return {key: path for key, path in given.items() if path is not None}
