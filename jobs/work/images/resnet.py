"""ResNet with bottleneck blocks, version 1.5: the stride of a stage is in its first 3x3 convolution, not in the 1x1.

https://arxiv.org/abs/1512.03385, table 1; version 1.5 as in
https://catalog.ngc.nvidia.com/orgs/nvidia/resources/resnet_50_v1_5_for_pytorch. Convolutions are initialised as in
https://arxiv.org/abs/1502.01852, and the last normalization of each block is 0, so that a block begins as its shortcut
(https://arxiv.org/abs/1706.02677, section 5.1).
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from jobs.settings.images import EXPANSION, SIZES, ImageNetwork


def convolution(channels: int, out: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution that keeps height and width at stride 1, and its batch normalization."""
    return [nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out)]


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3 and 1x1, added to a shortcut."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * inner
        self.residual = nn.Sequential(
            *convolution(channels, inner, 1), nn.ReLU(inplace=True), *convolution(inner, inner, 3, stride),
            nn.ReLU(inplace=True), *convolution(inner, out, 1),
        )  # fmt: skip
        same = stride == 1 and channels == out
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(channels, out, 1, stride))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        """Return features (N, 4 x inner, H / stride, W / stride)."""
        return cast(Tensor, self.relu(self.residual(features) + self.shortcut(features)))


class ResNet(nn.Module):
    """The network: images (N, 3, H, W) to logits (N, classes)."""

    def __init__(self, network: ImageNetwork, classes: int) -> None:
        super().__init__()
        blocks, width = SIZES[network]
        self.stem = nn.Sequential(*convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        stages, channels = [], width
        for stage, count in enumerate(blocks):
            inner = width * 2**stage
            parts = []
            for block in range(count):
                parts.append(Bottleneck(channels, inner, 2 if stage and block == 0 else 1))
                channels = EXPANSION * inner
            stages.append(nn.Sequential(*parts))
        self.stages = nn.ModuleList(stages)
        self.head = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(cast(nn.BatchNorm2d, module.residual[-1]).weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes)."""
        features = self.stem(images)
        for stage in self.stages:
            features = stage(features)
        return cast(Tensor, self.head(features.mean((2, 3))))
