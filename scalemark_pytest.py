"""The pytest plug-in of scalemark: the fixture `scaling_case` and the marker `scaling`.

Every pytest in an environment with scalemark loads this file, so it imports nothing but pytest, and it has a
name of its own beside the package: where a team has a folder `bench`, that stays theirs until one of their
tests asks for the fixture.
"""

import argparse
import copy
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bench.scaling_case import ScalingResult

LAUNCHES = 3  # the fewest with an interval to judge by: with 2 it is 3.6 times as wide
ADDED = pytest.StashKey[bool]()  # the fixture `benchmark` was added here, not asked for by the test


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of launches; give 1 or more")
    return int(text)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for all scaling tests."""
    group = parser.getgroup("scalemark", "scaling tests (scalemark)")
    group.addoption(
        "--scaling-launches", type=_count, metavar="N",
        help=f"launches of every case, whatever the tests say (else {LAUNCHES}); 1: quick, no intervals",
    )  # fmt: skip
    group.addoption("--scaling-results", metavar="DIR", help="keep the studies there (else: tmp_path)")


def pytest_configure(config: pytest.Config) -> None:
    """The marker that every test with the fixture gets."""
    config.addinivalue_line("markers", "scaling: uses scaling_case: real launches, seconds each")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests with the fixture; to pytest-benchmark, where it is in use, they are benchmarks."""
    benchmarks = config.pluginmanager.hasplugin("benchmark")
    for item in items:
        names = getattr(item, "fixturenames", [])
        if "scaling_case" in names:
            item.add_marker("scaling")
            if benchmarks and "benchmark" not in names:
                names.append("benchmark")
                item.stash[ADDED] = True


@pytest.fixture
def scaling_case(request: pytest.FixtureRequest, tmp_path: Path) -> "Iterator[Callable[..., ScalingResult]]":
    """Call it with the settings of a case; it runs the case and its base and returns a ScalingResult.

    `scaling_case(strategy="ddp", ranks=2, model="my_pkg.train:build", data="own")`. `base` is a dict of
    settings (default: `strategy="single"` on one device; False: none), `launches` how often each runs. The
    test is skipped where this host cannot run the case, and fails in one line where a launch fails.
    """
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    if workers != "1":
        pytest.skip(f"scaling_case: {workers} pytest-xdist workers would disturb each other: run with -n 0")
    feed = _Benchmarks(request)
    results = request.config.getoption("--scaling-results")
    folder = request.config.invocation_params.dir / results if results else tmp_path
    name = re.sub(r"[^A-Za-z0-9.]+", "-", request.node.name).strip("-.")[:60] or "case"

    def case(*, launches: int = LAUNCHES, base: Any = None, **settings: Any) -> "ScalingResult":
        __tracebackhide__ = True
        wanted = request.config.getoption("--scaling-launches") or launches
        result = _run(name, settings, base, wanted, folder)
        feed.add(result, settings)
        return result

    yield case


def _run(name: str, settings: dict[str, Any], base: Any, launches: Any, folder: Path) -> "ScalingResult":
    """The result; else the test ends outside of the handlers, so that one line is all that it shows."""
    __tracebackhide__ = True
    skipped, failed = "", f"launches={launches!r}: give a number, 1 or more"
    if isinstance(launches, int) and launches >= 1:
        try:
            from bench.errors import BenchError
            from bench.scaling_case import CannotRun, run

            try:
                return run(name, settings, base, launches, folder)
            except CannotRun as reason:
                skipped = str(reason)
            except BenchError as error:
                failed = str(error).removeprefix(f"suite {name}: ")
        except ImportError as error:
            failed = f"{error}; if a package 'bench' of your own is on the path, it hides scalemark's"
    if skipped:
        pytest.skip(f"scaling_case: {skipped}")
    pytest.fail(f"scaling_case: {failed}", pytrace=False)


class _Benchmarks:
    """Shows every case of a test to pytest-benchmark as a benchmark with one round a launch.

    All that is private to pytest-benchmark (seen with 5.3) is in here.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._added = 0
        self._fixture: Any = (
            request.getfixturevalue("benchmark") if request.node.stash.get(ADDED, False) else None
        )
        if self._fixture is not None:
            self._fixture._mode = "scaling_case(...)"  # it is not forgotten, only filled from here

    def add(self, result: "ScalingResult", settings: dict[str, Any]) -> None:
        """A round is the seconds a sample took, so that OPS is samples/s for any number of devices."""
        if self._fixture is None or self._fixture.disabled:
            return
        self._added += 1
        try:
            one = copy.copy(self._fixture)
            if self._added > 1:
                one.name, one.fullname = (f"{name}#{self._added}" for name in (one.name, one.fullname))
            one.group = one.group or "scaling: seconds a sample"
            one.extra_info = _extra_info(result, settings)
            stats = one._make_stats(1)
            for rate in result.launches:
                stats.update(1 / rate)
        except (AttributeError, TypeError) as error:
            warnings.warn(
                pytest.PytestWarning(f"scaling_case: this pytest-benchmark is not understood: {error}"),
                stacklevel=2,
            )


def _extra_info(result: "ScalingResult", settings: dict[str, Any]) -> dict[str, Any]:
    efficiency = result.efficiency
    return {
        "unit": "seconds a sample, one round a launch",
        "settings": settings,
        "devices": result.devices,
        "samples_per_s": result.samples_per_s.value,
        "efficiency": efficiency and efficiency.value,
        "efficiency_low": efficiency and efficiency.low,
        "efficiency_high": efficiency and efficiency.high,
        "step_s": result.step_s,
        "marks": list(result.marks),
        "reject": result.reject,
        "cell": result.cell,
        "base_cell": result.base_cell,
        "study": str(result.study),
    }
