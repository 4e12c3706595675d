"""Which commit of the user's code a study ran: the working directory's, and whether it was changed."""

import subprocess


def git_state() -> str | None:
    """`3f2a91c` or `3f2a91c with changes`; None outside a repository or without git."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return None
    return f"{commit} with changes" if _git("status", "--porcelain", "--untracked-files=no") else commit


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, timeout=10, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
