"""Parts of a launch from several nodes, put together: telemetry as one table, the study's numbers of the nodes."""

from collections.abc import Sequence

import msgspec

from bench.launch import Result
from bench.records import Part
from bench.telemetry import Rows, no_rows


def part_ok(part: Part) -> bool:
    """Whether a node's part ended well."""
    return (
        part.lost is None
        and not part.stopped
        and part.outcome.error is None
        and bool(part.traces)
        and all(trace.status == "ok" for trace in part.traces)
    )


def with_nodes(result: Result, nodes: Sequence[int], processes: int) -> Result:
    """The study's numbers of the nodes in the place of those in the launch."""
    failure = result.failure
    if failure is not None:
        place = failure.first_node
        if place is None and failure.first_rank is not None:
            place = failure.first_rank // processes
        failure = msgspec.structs.replace(failure, first_node=None if place is None else nodes[place])
    traces = tuple(msgspec.structs.replace(trace, node=nodes[trace.node]) for trace in result.traces)
    return msgspec.structs.replace(result, failure=failure, traces=traces)


def merged(parts: Sequence[Part]) -> tuple[Rows, dict[str, str]]:
    """Telemetry of all nodes as one table, and why something of it is null.

    Ranks have their own names already; what else belongs to node 1 is called `node 1`, `node 1 eth0`, ...
    """
    rows, reasons = no_rows(), {}
    for part in parts:
        names = {subject: named(subject, part.node) for subject in set(part.readings.get("subject", ()))}
        for column, values in part.readings.items():
            if column == "subject":
                values = [names[subject] for subject in values]
            elif column == "node":
                values = [part.node] * len(values)
            rows[column].extend(values)
        for key, reason in part.reasons.items():
            subject, slash, measure_name = key.partition("/")
            reasons[f"{named(subject, part.node)}{slash}{measure_name}"] = reason
    return rows, reasons


def named(subject: str, node: int) -> str:
    """What a subject of telemetry is called in a study of several nodes."""
    if node == 0 or subject.startswith("rank "):
        return subject
    return f"node {node}" if subject == "node" else f"node {node} {subject}"
