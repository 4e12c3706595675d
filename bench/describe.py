"""Cells in words: what is trained on what, on how many devices, with which settings."""

from collections.abc import Iterable

from bench.case import Case

UNSAID = ("steps", "timeout_s", "seed")  # what no line says: cells that differ in these alone read the same


def loads(case: Case) -> bool:
    """Is there a loader, or does one batch lie on the device?"""
    return case.data != "device"


def needed_phases(case: Case) -> tuple[str, ...]:
    """The phases without which no cause of a loss can be named; a copy may rightly be unmeasured."""
    return ("data_wait",) * loads(case) + ("forward", "backward", "optimizer")


def settings(case: Case, leave_out: Iterable[str] = ()) -> dict[str, str]:
    """Model, data and every other field that is not at its default, as text."""
    skip = {"strategy", "ranks", "nodes", "scaling", *UNSAID, *leave_out}
    always = {"model", "data", "batch"}
    default = Case()
    fields = [name for name in Case.__struct_fields__ if name not in skip]
    return {
        name: level(getattr(case, name))
        for name in fields
        if name in always or getattr(case, name) != getattr(default, name)
    }


def unsaid(case: Case) -> dict[str, str]:
    """The fields that `describe` leaves out, as text."""
    return {name: level(getattr(case, name)) for name in UNSAID}


def level(value: object) -> str:
    """A setting's value in words."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return " ".join(f"{name}={part}" for name, part in value.items())
    return "default" if value is None else str(value)


def describe(case: Case, leave_out: Iterable[str] = ()) -> str:
    """One line for a cell: "ddp on 2 ranks, batch 16 a device, resnet-small on photos, num_workers 2"."""
    skip = set(leave_out)
    given = settings(case, {"model", "data", "batch", *skip})
    each = "in all" if case.scaling == "strong" else "a device"
    parts = [f"{'' if 'strategy' in skip else case.strategy} on {slots(case)}".strip()]
    parts += [f"batch {case.batch} {each}", f"{case.model} on {case.data}"]
    return ", ".join(parts + [f"{name} {text}" for name, text in given.items()])


def slots(case: Case) -> str:
    """ "2 ranks", "1 device", "2 nodes of 4 ranks"."""
    word = "device" if case.strategy in ("single", "dp") else "rank"
    each = f"{case.ranks} {word}{'s' * (case.ranks > 1)}"
    return each if case.nodes == 1 else f"{case.nodes} nodes of {each}"
