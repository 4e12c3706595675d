"""Cold and warm files: put out of the page cache or into it, and how much of them is in it (Linux)."""

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

LOOKED_AT = 64  # files whose residency is read; enough to tell cold from warm


def evict(path: str | Path) -> None:
    """Give a file's clean pages back to the system. What cannot be opened is left to its reader."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def warm(path: str | Path) -> None:
    """Read a file once, whole."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - unbuffered, in pieces
            while file.read(1 << 22):
                pass
    except OSError:
        return


def resident_share(paths: Sequence[str | Path]) -> float | None:
    """Share of the files' pages that are in memory, over at most 64 of them; None where it cannot be told."""
    step = -(-len(paths) // LOOKED_AT) or 1
    counts = [found for path in paths[::step] if (found := _resident(path)) is not None]
    pages = sum(total for _, total in counts)
    return sum(held for held, _ in counts) / pages if pages else None


def _resident(path: str | Path) -> tuple[int, int] | None:
    """Pages in memory and pages in all, from mincore(2); it tells the truth to who owns or may write the file."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        stat = os.fstat(file)
        size = stat.st_size
        if size == 0 or not (stat.st_uid == os.geteuid() or os.access(path, os.W_OK)):
            return None
        pages = -(-size // mmap.PAGESIZE)
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            return None
        flags = (ctypes.c_ubyte * pages)()
        failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), flags)
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
        return None if failed else (sum(flag & 1 for flag in flags), pages)
    finally:
        os.close(file)
