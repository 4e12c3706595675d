"""What a fork server loads once, so that no rank pays for it: torch, and what a first step would import."""

import importlib
from contextlib import suppress

import bench.measuring
import bench.strategies._reference_dp
import bench.strategies._sync_bn
import bench.worker  # noqa: F401

with suppress(ImportError):
    importlib.import_module("PIL.Image")
with suppress(ImportError):
    importlib.import_module("torch._dynamo")  # seen: 1.2 s, in the first optimizer that is made
