"""Micro-batches of images: which part of each the network sees, and its pixels by Pillow, or its JPEG for DALI.

Augmentation as in training on ImageNet: a crop of 8 to 100 % of the area with an aspect ratio of 3/4 to 4/3, resized,
mirrored half of the time (https://arxiv.org/abs/1409.4842, section 6). Held-out images have the central crop of
https://arxiv.org/abs/1512.03385: 7/8 of the shorter side. Pixels are bytes, a quarter of float32.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from jobs.errors import DataError
from jobs.settings.images import ImageDecoder, ImageTraining
from jobs.work.images.shards import Streamed

AREAS, RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10
"""Crops that are drawn until one lies within the image."""
CENTRAL_SHARE = 7 / 8
"""Side of the central crop divided by the shorter side of the image: 224 of 256 pixels."""
END_OF_IMAGE = b"\xff\xd9"
"""The last marker of a JPEG (ITU-T T.81, table B.1)."""
Box = tuple[float, float, float, float]
"""Left, upper, right and lower side of a crop, in pixels."""


class Crop(NamedTuple):
    """An image whose header was read, and the part of it that the network sees."""

    streamed: Streamed
    header: Image.Image
    box: Box
    mirrored: bool = False


class Batch(NamedTuple):
    """A micro-batch: pixels (N, size, size, 3) in bytes, labels (N), and numbers of the reader's position after it."""

    pixels: Tensor
    labels: Tensor
    position: Tensor | None = None


class Encoded(NamedTuple):
    """A micro-batch that DALI decodes: the bytes of N files one after the other, and their sizes (N).

    Boxes (N, 4) are the sides of the crops, in float32; mirrored (N) is 0 or 1; names are those in errors; labels and
    position as in Batch.
    """

    files: Tensor
    sizes: Tensor
    boxes: Tensor
    mirrored: Tensor
    names: list[str]
    labels: Tensor
    position: Tensor | None = None

    @property
    def jpegs(self) -> list[npt.NDArray[np.uint8]]:
        """Return the bytes of each file, without a copy."""
        return np.split(self.files.numpy(), np.cumsum(self.sizes.numpy())[:-1])


def batch_of(crops: list[Crop], settings: ImageTraining, position: Tensor | None = None) -> Batch | Encoded:
    """Return a micro-batch for the decoder of the run; raise DataError for an image that is not a complete JPEG."""
    labels = torch.tensor([each.streamed.label for each in crops])
    if settings.decoder is ImageDecoder.dali:
        for each in crops:
            # DALI fills with grey what a file cut short lacks. Most whole ones end so, others with bytes behind it.
            if not each.streamed.jpeg.endswith(END_OF_IMAGE):
                decoded(each.header, name_of(each.streamed))
        jpegs = [each.streamed.jpeg for each in crops]
        return Encoded(
            files=torch.frombuffer(bytearray(b"".join(jpegs)), dtype=torch.uint8),
            sizes=torch.tensor([len(each) for each in jpegs]),
            boxes=torch.tensor([each.box for each in crops], dtype=torch.float32),
            mirrored=torch.tensor([each.mirrored for each in crops], dtype=torch.int32),
            names=[name_of(each.streamed) for each in crops],
            labels=labels,
            position=position,
        )
    pixels = [
        cropped(decoded(each.header, name_of(each.streamed)), each.box, settings.size, mirrored=each.mirrored)
        for each in crops
    ]
    return Batch(torch.stack(pixels), labels, position)


def usable(image: Streamed, classes: int) -> Image.Image:
    """Return an image with its size, not decoded, whose label the network knows; raise DataError."""
    refuse_unknown_class(image.label, classes, name_of(image))
    return opened(image.jpeg, name_of(image))


def name_of(image: Streamed) -> str:
    """Return the place of an image, for errors."""
    return f"{image.file}: {image.name}"


def refuse_unknown_class(label: int, classes: int, name: str) -> None:
    """Raise DataError for a label that the network has no logit for."""
    if not 0 <= label < classes:
        raise DataError(
            f"{name} has label {label}, and images.classes={classes} allows 0 to {classes - 1}. Set images.classes to "
            "the number of classes of the data."
        )


def opened(jpeg: bytes, name: str) -> Image.Image:
    """Return an image whose header was read; raise DataError if the header is not a JPEG's."""
    with damage_named(name):
        return Image.open(io.BytesIO(jpeg), formats=["JPEG"])


def decoded(image: Image.Image, name: str) -> Image.Image:
    """Return an image in RGB; raise DataError if it is not a complete JPEG."""
    with damage_named(name):
        return image.convert("RGB")


@contextmanager
def damage_named(name: str) -> Iterator[None]:
    """Turn what Pillow raises for a damaged file into a DataError with its place and a remedy."""
    try:
        yield
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{name} is not a complete JPEG ({str(error).partition(' <')[0]}). Remove it from its shard, or copy the "
            "shard again from its source."
        ) from error


def cropped(image: Image.Image, box: Box, size: int, *, mirrored: bool = False) -> Tensor:
    """Return a crop (left, upper, right, lower side) as bytes (size, size, 3)."""
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))
    # A copy: the pixels of Pillow cannot be written, which torch wants.
    return torch.from_numpy(np.array(pixels[:, ::-1] if mirrored else pixels, order="C"))


def random_box(width: int, height: int, draw: random.Random) -> Box:
    """Return left, upper, right and lower side of a random crop; a central one where none lies within the image."""
    for _ in range(TRIES):
        area = width * height * draw.uniform(*AREAS)
        ratio = math.exp(draw.uniform(*map(math.log, RATIOS)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, upper = draw.randint(0, width - w), draw.randint(0, height - h)
            return left, upper, left + w, upper + h
    return centred(width, height, min(width, height * RATIOS[1]), min(height, width / RATIOS[0]))


def central_box(width: int, height: int) -> Box:
    """Return the sides of the central crop of a held-out image."""
    side = CENTRAL_SHARE * min(width, height)
    return centred(width, height, side, side)


def centred(width: int, height: int, w: float, h: float) -> Box:
    """Return the sides of a box of w x h in the middle of an image."""
    return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2
