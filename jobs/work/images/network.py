"""The convolutions of a network, counted: weights, multiplications, and values that a layer gives. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jobs.settings.images import EXPANSION, SIZES, ImageNetwork


@dataclass(frozen=True)
class Convolution:
    """A convolution and the normalization of its channels."""

    channels: int
    out: int
    kernel: int
    size: int
    """Height and width of what it gives, in pixels."""
    is_shortcut: bool = False

    @property
    def weights(self) -> int:
        """Return its weights, and the scale and shift of each channel."""
        return self.kernel**2 * self.channels * self.out + 2 * self.out

    @property
    def values(self) -> int:
        """Return the numbers that it gives for an image."""
        return self.out * self.size**2

    @property
    def multiplications(self) -> int:
        """Return its multiplications for an image: each value has one for every weight of its channel."""
        return self.values * self.kernel**2 * self.channels


def convolutions(network: ImageNetwork, size: int) -> Iterator[Convolution]:
    """Yield the convolutions of a network for images of this height and width, in the order of jobs.work.images.resnet.

    Padding keeps the size at stride 1, and rounds half of it up at stride 2.
    """
    blocks, width = SIZES[network]
    size = half(size)
    yield Convolution(3, width, 7, size)
    size, channels = half(size), width
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        for block in range(count):
            given = half(size) if stage and block == 0 else size
            yield Convolution(channels, inner, 1, size)
            yield Convolution(inner, inner, 3, given)
            yield Convolution(inner, EXPANSION * inner, 1, given)
            if block == 0:
                # Its shortcut changes the number of channels.
                yield Convolution(channels, EXPANSION * inner, 1, given, is_shortcut=True)
            size, channels = given, EXPANSION * inner


def half(size: int) -> int:
    """Return the height of what a layer of stride 2 gives."""
    return -(-size // 2)


def parameters(network: ImageNetwork, classes: int) -> int:
    """Return the weights of a network, those of batch normalization included."""
    found = list(convolutions(network, 224))
    return sum(each.weights for each in found) + found[-1].out * classes + classes
