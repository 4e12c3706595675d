"""What holds for all tests: the pytests that they start are runs of their own, not workers of this one."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def not_a_worker():
    """No word of pytest-xdist in the environment that started processes get."""
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        del os.environ[name]
