"""Images/s of DALI and of Pillow on one core: shards read, decoded, cropped to 224 pixels and mirrored.

Both read the same images in turns. Processor time is compared, because the machine may have other work.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import closing
from itertools import islice
from pathlib import Path

import torch

from jobs.settings.images import ImageDecoder, ImageTraining
from jobs.work.images.decoding import Batch
from jobs.work.images.loader import Images, loaded
from jobs.work.images.make import make_images
from jobs.work.images.shards import parts_of, shards_of

TURNS = 5
BATCH, BATCHES = 32, 8
CPU = torch.device("cpu")


def read(directory: Path, decoder: ImageDecoder) -> tuple[list[Batch], float]:
    """Return the images of a turn, and how many it made per second of processor time after the first batch."""
    settings = ImageTraining(workers=0, decoder=decoder)
    images = Images(settings, parts_of(shards_of(directory), 1), batch_size=BATCH, rank=0, ranks=1, seed=1)
    with closing(loaded(images, CPU)) as batches:
        found = [next(batches)]
        fence = time.process_time()
        found += islice(batches, BATCHES)
        return found, BATCH * BATCHES / (time.process_time() - fence)


def main() -> None:
    """Print the ratio, both rates, and the difference of the pixels."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rates: dict[ImageDecoder, list[float]] = {decoder: [] for decoder in ImageDecoder}
    pixels = {}
    with tempfile.TemporaryDirectory() as where:
        make_images(Path(where), count=BATCH * (BATCHES + 3), shards=1, mean_kb=115, classes=1000, seed=1)
        for _ in range(TURNS):
            for decoder, measured in rates.items():
                found, rate = read(Path(where), decoder)
                measured.append(rate)
                pixels[decoder] = torch.cat([batch.pixels for batch in found]).float()
    difference = (pixels[ImageDecoder.dali] - pixels[ImageDecoder.pillow]).abs()
    dali, pillow = (statistics.median(rates[decoder]) for decoder in (ImageDecoder.dali, ImageDecoder.pillow))
    print(
        f"\nDALI decodes {dali / pillow:.2f} times as many images/s as Pillow: {dali:.0f} against {pillow:.0f} of "
        f"115 kB per second of processor time (medians of {TURNS}; "
        + "; ".join(f"{each.name} {min(found):.0f} to {max(found):.0f}" for each, found in rates.items())
        + f"; CPU)\npixels differ by {difference.mean():.2f} of 255 in the mean, by more than 3 in "
        f"{(difference > 3).float().mean():.2%}"
    )


if __name__ == "__main__":
    main()
