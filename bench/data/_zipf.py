"""Token ids drawn from a long-tailed distribution, as those of a text are distributed. Needs no torch."""

from typing import IO

import numpy as np

IDS = 2**16  # as many as two bytes tell apart
DTYPE = np.dtype("<u2")
CHUNK = 2**20


def write_tokens(file: IO[bytes], tokens: int, seed: int) -> None:
    """Ids k of probability proportional to 1 / (k + 1), independent of one another: Zipf's law, as words have it."""
    weights = 1 / np.arange(1, IDS + 1)
    cumulative = np.cumsum(weights) / weights.sum()
    random = np.random.default_rng(seed)
    for start in range(0, tokens, CHUNK):
        drawn = np.searchsorted(cumulative, random.random(min(CHUNK, tokens - start)), side="right")
        file.write(np.minimum(drawn, IDS - 1).astype(DTYPE).tobytes())
