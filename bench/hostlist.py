"""Slurm's host lists as names: `n[1-3,07],m5` is n1, n2, n3, n07, m5."""

import re
from itertools import product

from bench.errors import UsageError
from bench.plugins import clip

MOST_HOSTS = 100_000


def expand(text: str) -> list[str]:
    """Slurm's host list, such as `n[1-3,07],m5` or `r[1-2]-n[08-10]`, as names in its order.

    Leading zeros set the width. Raises UsageError for text that is no such list.
    """
    names = []
    for word in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|.", text):
        if word == ",":
            continue
        pieces = re.findall(r"\[[^\[\]]*\]|[^\[\]]+|.", word)
        parts = [_numbers(piece, text) if piece[0] in "[]" else [piece.strip()] for piece in pieces]
        names += ["".join(name) for name in product(*parts)]
        if len(names) > MOST_HOSTS:
            raise _bad_list(text)
    if not all(names) or not names:
        raise _bad_list(text)
    return names


def _numbers(bracket: str, text: str) -> list[str]:
    """`[1-3,07]` as 1, 2, 3, 07."""
    found = []
    for span in bracket[1:-1].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", span.strip(), re.ASCII)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < MOST_HOSTS:
            raise _bad_list(text)
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return found


def _bad_list(text: str) -> UsageError:
    return UsageError(f"host list {clip(text)!r}: not Slurm's syntax, such as n[1-3,07],m5")
