"""Files of /proc and /sys that are read again and again: opened once, read in place."""

import os
from pathlib import Path


class Files:
    """Open files below a folder, by name."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[str, int] = {}

    def text(self, name: str) -> bytes:
        """The start of a file, 64 KiB at most. Raises OSError."""
        if name not in self._open:
            self._open[name] = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._open[name], 1 << 16, 0)

    def whole_text(self, name: str) -> bytes:
        """For files that the kernel hands out a page at a time, in whole lines. Raises OSError."""
        text = self.text(name)
        while more := os.pread(self._open[name], 1 << 16, len(text)):
            text += more
        return text
