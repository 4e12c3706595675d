"""Headless Chromium for tests: the system's own, through playwright; no network is there for it."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def chromium() -> str:
    """The path of Chromium. Without one the test is skipped and says so; under CI it fails."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        missing("Chromium is not installed (Debian: apt-get install chromium)")
    return found


def missing(what: str) -> None:
    """Skip the test, or fail it under CI, where everything that tests need has to be there."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """A running browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed (pip install playwright)")
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()
