"""Residual networks (He et al., 2015, arXiv:1512.03385), keys and shapes equal to torchvision's.

Version 1.5: a bottleneck's stride is in its 3x3 convolution, as torchvision and the MLPerf rules have it.
"""

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import relu

from bench.workload import Sample, Workload


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.downsample(x) if self.downsample else x
        return relu(y, inplace=True)


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up to four times the width, beside a shortcut."""

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn1(self.conv1(x)), inplace=True)
        y = relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += self.downsample(x) if self.downsample else x
        return relu(y, inplace=True)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """A projection where the shape changes, None where the input can be added as it is."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A stem, four stages of blocks, global average pooling, a linear classifier.

    `blocks` counts the blocks of each stage; the stages are `width`, 2, 4 and 8 times `width` wide.
    `small_images` takes a 3x3 stem without pooling in place of the 7x7 one with it.
    """

    def __init__(
        self,
        block: type[Basic | Bottleneck],
        blocks: tuple[int, ...],
        classes: int,
        width: int = 64,
        small_images: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = _conv(3, width, 3 if small_images else 7, stride=2)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        inputs = width
        for stage, count in enumerate(blocks):
            wide = width * 2**stage
            strides = [1 if stage == 0 else 2] + [1] * (count - 1)
            layers = []
            for stride in strides:
                layers.append(block(inputs, wide, stride))
                inputs = wide * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.stages = len(blocks)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, 3, height, width) to logits (batch, classes)."""
        x = self.maxpool(relu(self.bn1(self.conv1(x)), inplace=True))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def image_workload(model: nn.Module, image_size: int, classes: int) -> Workload:
    """A classifier of square images, trained with the defaults."""
    return Workload(model, sample=Sample((3, image_size, image_size), classes))
