"""Allocations out of a random generator, for tests of what compares two sides: nothing is run or written."""

import numpy as np

from bench.compared import Allocation, Measured

FACTS = {"torch": "2.9.0", "devices": "8 × Simulated H"}


def allocation(name, logs, facts=FACTS, **fields):
    """One allocation; `logs` has a list of ln(samples/s), one a block, or a Measured, by cell."""
    cells = {
        cell: found
        if isinstance(found, Measured)
        else Measured(cell, f"the cell {cell}", dict(enumerate(found)))
        for cell, found in logs.items()
    }
    return Allocation(name, facts, cells, **fields)


def drawn(random, name, cells=("a",), blocks=5, between=0.02, spread=0.01, shift=0.0, at=6.0):
    """An allocation that lies `between` off its kind, with launches that `spread` about it and are `shift`ed."""
    off = random.normal(0, between)
    return allocation(
        name, {cell: (at + off + shift + random.normal(0, spread, blocks)).tolist() for cell in cells}
    )


def interleaved(random, cells=("a",), blocks=10, spread=0.01, drift=0.02, shift=0.0):
    """Both sides of one allocation whose blocks drift together; the new side is `shift`ed."""
    common = 6.0 + np.linspace(0, drift, blocks)
    base = {cell: (common + random.normal(0, spread, blocks)).tolist() for cell in cells}
    new = {cell: (common + shift + random.normal(0, spread, blocks)).tolist() for cell in cells}
    return allocation("base", base), allocation("new", new)
