"""Predicted memory and speed of training on images: a roofline of the convolutions, or the decoding of the images.

    micro-batch = max(FLOPs / convolution rate + bytes of the layers / memory bandwidth, time to launch its operators)
    step = micro-batches + update + what of DDP's all-reduce is not behind the last backward pass

Unlike matrix products, the normalizations and activations between convolutions are limited by memory, and no kernel
does both, so the times add up. A rank trains no faster than its workers decode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jobs.layout import accumulation, layout_of
from jobs.metrics import STEP_TIME
from jobs.parallelism import DP_REPLICATE
from jobs.plan.predict.activations import WIDTHS
from jobs.plan.predict.communication import Exchange, group_of, links_of, seconds
from jobs.plan.predict.constants import StepTimeConstants
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.memory import COUNTED, FRAGMENTS, FRAMEWORK, Prediction, total
from jobs.plan.predict.speed import stops_s
from jobs.plan.predict.step_time import matmul_flops_per_s, peak_flops_per_s
from jobs.schema import Precision, Run
from jobs.settings.images import ImageDecoder, ImageTraining
from jobs.work.images.network import convolutions, half, parameters

UNCALIBRATED = "uncalibrated: by published rows of ResNet-50 on A100 and V100, not fitted to runs on this cluster"
CONVOLUTION_SHARE = 0.7
"""Rate of convolutions in 16 bits over the largest one of matrix products. This and the next three constants are by the
rows of one GPU with PyTorch in tests/benchmarks/image_rows.csv (tests/README.md, Predicted training on images)."""
TF32_SHARE = 0.29
"""The same in TF32, over the dense peak."""
FLOAT32_SHARE = 0.97
"""The same in float32: cuDNN computes 3x3 convolutions with fewer multiplications (Winograd, arXiv:1509.09308)."""
MEMORY_SHARE = 0.8
"""Part of the memory bandwidth that normalizations and activations reach."""
PASSES = 19
"""Times that forward and backward read or write what a convolution gives: 7 forward (written; read twice and written by
the normalization; read and written by the activation; read by the next convolution), and 12 backward."""
BACKWARD_SHARE = 2 / 3
"""Part of a micro-batch that is backward: two products for each one of forward."""
OPERATORS = 4
"""Operators for each convolution: itself, its weight's cast, normalization, activation or sum."""
OPERATOR_S = 2.5e-5
"""Time in which the host launches an operator forward or backward: an estimate."""
BUCKET_MB = 25
"""Bucket of DDP, in MiB, where parallelism.bucket_mb is not set."""
UPDATE_PASSES = 5
"""Reads and writes of each weight by SGD: weight, gradient and momentum, and weight and momentum again."""
DECODED_PER_CORE_S = 229.0
"""Images of 115 kB that a core decodes, crops and resizes with Pillow in a second, as measured on one machine
(python -m tests.benchmarks.image_decoders)."""
MEAN_KB = ImageTraining.mean_kb
"""Size of the images of that measurement, which is the mean of ImageNet, too."""
SLOWER, FASTER, OTHER_CORE = 1.7, 1.45, 2.0
"""Limits of the rate of GPUs below and above the point, and of the rate of decoding to both sides."""


@dataclass(frozen=True)
class ImageSpeed:
    """Predicted step time and what follows from it."""

    step_time_s: Interval
    images_per_s: Interval
    """Rate of all ranks together."""
    hours: Interval | None
    limited_by: str

    def record(self) -> dict[str, object]:
        """Return the prediction as plan.json contains it."""
        named = {STEP_TIME.name: self.step_time_s, "images_per_s": self.images_per_s, "hours": self.hours}
        known = {name: value.record(6) for name, value in named.items() if value is not None}
        return {"basis": UNCALIBRATED, **known, "limited_by": self.limited_by}


def image_memory(run: Run) -> Prediction:
    """Return the predicted memory of a GPU: states in float32, and what the layers keep for backward.

    On a CPU, torch keeps this within 0.3 % (tests/jobs/work/images/test_speed.py); no GPU was measured.
    """
    images, width = settings_of(run), WIDTHS[run.job.precision]
    weights = parameters(images.network, images.classes)
    layers = list(convolutions(images.network, images.size))
    # A layer keeps what the convolution gives and what the activation does; the normalization of a shortcut is summed.
    values = sum(each.values * (1 if each.is_shortcut else 2) for each in layers) + 3 * images.size**2
    pooled = layers[0].out * half(layers[0].size) ** 2
    # Max-pooling keeps the place of each largest value as an int64. Autocast casts weights once a micro-batch.
    cast = 0 if run.job.precision is Precision.float32 else width * weights
    kept = run.job.micro_batch_size * (width * (values + pooled) + 8 * pooled) + cast
    terms = {name: Interval(*[4.0 * weights] * 3) for name in ("weights", "gradients", "optimizer")}
    terms["activations"] = Interval(kept, COUNTED[0] * kept, COUNTED[1] * kept)
    terms |= {"fragments": FRAGMENTS.scaled(total(list(terms.values())).point), "framework": FRAMEWORK}
    return Prediction(dict(sorted(terms.items(), key=lambda item: -item[1].point)), "uncalibrated")


def image_speed(run: Run) -> ImageSpeed | None:
    """Return the predicted speed of a run that trains on images; None if the rates of its GPU are not known."""
    gpu_s = gpu_step_s(run)
    if gpu_s is None:
        return None
    count, steps = run.global_batch_size, run.job.steps
    rate = Interval(count / gpu_s, count / gpu_s / SLOWER, count / gpu_s * FASTER)
    decoded = decoded_per_s(run)
    limit = "decoding" if decoded is not None and decoded.point < rate.point else "GPU"
    if decoded is not None:
        rate = Interval(*(min(own, other) for own, other in zip(ends(rate), ends(decoded), strict=True)))
    step_s = rate.divides(count)
    # It writes all its checkpoints in the foreground.
    foreground = replace(run, job=replace(run.job, checkpoint_in_background=False))
    hours = None if steps is None else (step_s.scaled(steps) + stops_s(foreground, steps)).scaled(1 / 3600)
    return ImageSpeed(step_s, rate, hours, limit)


def gpu_step_s(run: Run) -> float | None:
    """Return the time of a step of a rank that never waits for images; None if the rates of its GPU are not known."""
    images, peak, memory = settings_of(run), peak_flops_per_s(run), run.gpu.memory_gb_per_s
    if peak is None or memory is None:
        return None
    layers = list(convolutions(images.network, images.size))
    # Forward, and in backward the gradients of weights and inputs; images have no gradient.
    products = 3 * sum(each.multiplications for each in layers) - layers[0].multiplications
    moved = PASSES * WIDTHS[run.job.precision] * sum(each.values for each in layers)
    bandwidth = MEMORY_SHARE * memory * 1e9
    image_s = 2 * products / convolution_rate(run, peak) + moved / bandwidth
    launched_s = 2 * OPERATORS * len(layers) * OPERATOR_S
    micro_s = max(run.job.micro_batch_size * image_s, launched_s)
    weights_bytes = 4.0 * parameters(images.network, images.classes)
    group = group_of(run, layout_of(run), (DP_REPLICATE,))
    buckets = max(1.0, weights_bytes / ((run.parallelism.bucket_mb or BUCKET_MB) * 2**20))
    sent = Exchange(group, 2 * group.share * weights_bytes, buckets)
    reduce_s = seconds(sent, links_of(run), StepTimeConstants())
    # The last bucket is ready when backward ends.
    exposed_s = max(reduce_s / buckets, reduce_s - BACKWARD_SHARE * micro_s)
    return accumulation(run) * micro_s + exposed_s + UPDATE_PASSES * weights_bytes / bandwidth


def convolution_rate(run: Run, peak: float) -> float:
    """Return the rate of convolutions in FLOP/s, given the peak."""
    if run.job.precision is not Precision.float32:
        return CONVOLUTION_SHARE * matmul_flops_per_s(run, peak)
    return (TF32_SHARE if run.engine.tf32 and run.gpu.peak_tf32_tflops else FLOAT32_SHARE) * peak


def decoded_per_s(run: Run) -> Interval | None:
    """Return the images that the workers of all ranks decode in a second; None if DALI does so on the GPU."""
    images = settings_of(run)
    if images.decoder is ImageDecoder.dali:
        return None
    mean_kb = images.mean_kb if images.path is None else MEAN_KB
    rate = run.ranks * cores_of(run) * DECODED_PER_CORE_S * MEAN_KB / mean_kb
    return Interval(rate, rate / OTHER_CORE, rate * OTHER_CORE)


def cores_of(run: Run) -> int:
    """Return the cores with which the workers of a rank decode; one if the rank does so itself, between its steps."""
    workers = max(1, settings_of(run).workers)
    return min(workers, run.cluster.cpus_per_rank or workers)


def decoding_note(run: Run) -> str | None:
    """Return how many workers would keep the GPUs busy; None if those of a run do, or nothing is known."""
    found, gpu_s, decoded = image_speed(run), gpu_step_s(run), decoded_per_s(run)
    if found is None or gpu_s is None or decoded is None or found.limited_by == "GPU":
        return None
    images, rate = settings_of(run), run.global_batch_size / gpu_s
    cores = math.ceil(rate / decoded.point * cores_of(run))
    return (
        f"the GPUs of the run could train {rate:,.0f} images/s, and images.workers={images.workers} on "
        f"{cores_of(run)} cores of each rank decode about {decoded.point:,.0f}. Set images.workers={cores} with as "
        "many cluster.cpus_per_rank, or images.decoder=dali"
    )


def ends(interval: Interval) -> tuple[float, float, float]:
    """Return point and limits."""
    return interval.point, interval.low, interval.high


def settings_of(run: Run) -> ImageTraining:
    """Return the settings of a run that trains on images."""
    assert run.images is not None
    return run.images
