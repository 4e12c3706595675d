"""A mount namespace that a test can look into: folders there are small, full or read-only, and nothing of it shows outside."""

import os
import subprocess
import sys
from pathlib import Path


class Disk:
    """A small tmpfs at `folder`, in a mount namespace of its own; it ends with `close`. Needs root."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        made = f"mount -t tmpfs -o size={megabytes}m tmpfs {folder} && echo made && exec sleep 3600"
        self._holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", made], stdout=subprocess.PIPE)
        assert self._holder.stdout.readline() == b"made\n"
        self.folder = folder
        self.inside = Path(f"/proc/{self._holder.pid}/root{folder}")  # the same, seen from outside

    def start(self, place: Path, *words: str) -> subprocess.Popen:
        """scalemark WORDS in the namespace, its output in `place`/out."""
        with (place / "out").open("ab") as out:
            return subprocess.Popen(
                [*self._enter, "sh", "-c", 'cd "$0" && exec "$@"', str(place), sys.executable, "-P", "-m", "bench", *words],
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | {"COLUMNS": "200"},
            )  # fmt: skip

    def lock(self) -> None:
        """From now on nobody opens a file for writing: the folder, read-only, is mounted over itself."""
        for how in (["--bind", str(self.folder)], ["-o", "remount,bind,ro"]):
            subprocess.run([*self._enter, "mount", *how, str(self.folder)], check=True)

    def unlock(self) -> None:
        """Writable again."""
        subprocess.run([*self._enter, "umount", str(self.folder)], check=True)

    def fill(self) -> None:
        """Take all the space that is left."""
        with (self.inside / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def free(self) -> None:
        """Give it back."""
        (self.inside / "filler").unlink()

    @property
    def _enter(self) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt"]

    def close(self) -> None:
        """The namespace and all mounts in it are gone."""
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()
