"""Many different photographs out of one: seeded crops, varied in size, light, texture and JPEG quality."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

SIDES = (200, 700)  # pixels
GRAIN = 1024  # pixels a side of the texture that every file takes a part of


def source() -> Path:
    """The photograph that matplotlib ships, found without importing matplotlib. Raises UsageError."""
    spec = importlib.util.find_spec("matplotlib")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder, "mpl-data", "sample_data", "grace_hopper.jpg")
        if path.is_file():
            return path
    raise UsageError(
        "data 'photos': matplotlib's sample photograph grace_hopper.jpg is not installed: "
        "install matplotlib with pip, or use data 'imagefolder:PATH'"
    )


def cut(folder: Path, files: int, seed: int) -> None:
    """Write `files` JPEG files (0000.jpg, ...) of about 500 x 400 pixels and 110 kB each into `folder`.

    The same seed gives the same pixels; sizes follow ImageNet's (mean 500 x 400 pixels, 110 kB).
    """
    import numpy as np
    from PIL import Image

    with Image.open(source()) as opened:
        photograph = opened.convert("RGB")
    grain = np.random.default_rng(seed).normal(0, 1, (GRAIN, GRAIN, 3)).astype(np.float32)
    for number in range(files):
        rng = np.random.default_rng([seed, number])
        image = _textured(_crop(photograph, rng), grain, rng)
        image.save(folder / f"{number:04d}.jpg", quality=int(rng.integers(84, 96)))


def _crop(photograph: "Image.Image", rng: "np.random.Generator") -> "Image.Image":
    """A turned, mirrored part of the photograph, one in five upright, brought to a size of its own."""
    from PIL import Image

    sides = rng.normal((535, 375), (80, 60)).clip(*SIDES).astype(int)
    width, height = (int(side) for side in (sides if rng.random() < 0.8 else sides[::-1]))
    turned = photograph.rotate(rng.uniform(-10, 10), Image.Resampling.BILINEAR)
    largest = min(turned.width / width, turned.height / height)
    scale = largest * rng.uniform(0.4, 1)
    left = rng.uniform(0, turned.width - width * scale)
    top = rng.uniform(0, turned.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    image = turned.resize((width, height), Image.Resampling.BICUBIC, box=box)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image


def _textured(image: "Image.Image", grain: "np.ndarray", rng: "np.random.Generator") -> "Image.Image":
    """Light, colour and grain varied: grain is what gives the files the bytes of detailed photographs."""
    import numpy as np
    from PIL import Image

    top, left = rng.integers(0, GRAIN - SIDES[1], 2)
    noise = grain[top : top + image.height, left : left + image.width]
    pixels = np.asarray(image, np.float32) * rng.uniform(0.7, 1.2, 3).astype(np.float32)
    pixels += noise * np.float32(rng.uniform(8, 36))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
