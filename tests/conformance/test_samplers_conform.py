"""Every sampler opens on any host, gives numbers or nulls with their reasons, and takes any period."""

import math
import time

import pytest

from bench import plugins
from bench.sampling import Watch


@pytest.mark.parametrize("name", plugins.names("samplers"))
def test_every_sampler_reads_numbers_or_nulls_with_reasons(name):
    """Two readings of a host as it is: keys are subject and measure, values finite, nulls are explained."""
    sampler = plugins.load("samplers", name)
    assert sampler.summary
    reader = sampler.open(Watch(folder="", parent_pid=0, device_uuids=("GPU-of-nobody",)))
    for _ in range(2):
        values = reader.read(time.monotonic())
        for (subject, measure), value in values.items():
            assert subject and measure and "/" not in measure
            assert value is None or math.isfinite(value)
            explained = [key for key in reader.reasons if key.startswith(f"{subject}/")]
            assert value is not None or explained, (subject, measure)
