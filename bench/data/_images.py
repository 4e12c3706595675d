"""Image files as training samples: decoded, cropped and flipped at random, normalised, as for ImageNet."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from bench.errors import UsageError
from bench.pagecache import evict
from bench.workload import Sample

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)

Box = tuple[int, int, int, int]


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """`length` samples of `files`, taken in turn: item i is a new random crop of file i modulo their number.

    Items are (float32 tensor of shape (3, size, size), normalised; label). Random numbers come from torch,
    which seeds every loader worker differently. `cold`: a file is put out of the page cache once read, so that
    every read goes to the disk.
    """

    def __init__(
        self, files: Sequence[Path], labels: Sequence[int], length: int, size: int, cold: bool = False
    ) -> None:
        self.files = [str(file) for file in files]
        self.labels = list(labels)
        self.length = length
        self.size = size
        self.cold = cold

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        file = self.files[index % len(self.files)]
        try:
            with Image.open(file) as opened:
                image = opened.convert("RGB")
        except (OSError, SyntaxError) as error:  # what PIL raises for a damaged file
            raise UsageError(f"data: cannot read the image {file} ({error}): repair or remove it") from error
        if self.cold:
            evict(file)
        return augmented(image, self.size), self.labels[index % len(self.labels)]


def augmented(image: Image.Image, size: int) -> Tensor:
    """A random resized crop, flipped half the time, as a normalised tensor (3, size, size)."""
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=random_box(*image.size))
    if torch.rand(()).item() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = (np.asarray(image, np.float32) / 255 - MEAN) / STD
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def random_box(width: int, height: int) -> Box:
    """A crop (left, top, right, bottom) of a random share of the area and a random aspect ratio.

    The rule of torchvision's RandomResizedCrop: ten tries, then the largest centred crop of a legal ratio.
    """
    for area, ratio, x, y in torch.rand(10, 4).tolist():
        pixels = width * height * (AREA[0] + area * (AREA[1] - AREA[0]))
        aspect = math.exp(math.log(RATIO[0]) + ratio * (math.log(RATIO[1]) - math.log(RATIO[0])))
        w, h = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, max(1, round(height * RATIO[1]))), min(height, max(1, round(width / RATIO[0])))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def square(sample: Sample, name: str) -> int:
    """The image size of a sample (3, size, size). Raises UsageError for a model of anything else."""
    channels, *sides = sample.shape
    if sample.tokens or channels != 3 or len(sides) != 2 or sides[0] != sides[1]:
        raise UsageError(
            f"data {name!r} gives square colour images and the model takes {sample.shape}: "
            "choose an image model, or data 'synthetic' or 'device'"
        )
    return sides[0]
