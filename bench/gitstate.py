"""Which commit of the user's code a study ran: the working directory's, and whether it was changed."""

import os
import subprocess


def git_state(folder: str | os.PathLike[str] = ".") -> str | None:
    """`3f2a91c` or `3f2a91c with changes`; None outside a repository or without git."""
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit} with changes" if changed else commit


def _git(folder: str | os.PathLike[str], *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, timeout=10, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
