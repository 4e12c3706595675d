"""Stand-ins for nodes: followers and an engine that run no ranks, so that what is left is what coordination costs."""

import multiprocessing
import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.case import Case
from bench.launch import Engine
from bench.nodes import Team
from bench.records import PHASES, Launch, Member, Outcome, Part, RankTrace
from bench.sameness import mine

SECRET = b"a secret for self-bench"
ROOT = Path(__file__).parents[2]


def trace(rank=0, local_rank=0, node=0, columns=None):
    """A rank that ended well; `columns` are its steps."""
    return RankTrace(
        launch="x", rank=rank, local_rank=local_rank, node=node, host="h", pid=1, status="ok", **columns or {}
    )


def long_columns(steps, seed=0):
    """Steps of a rank: a duration a step and phase, and samples."""
    draw = random.Random(seed).random
    phases = {name: tuple(draw() / 100 for _ in range(steps)) for name in PHASES}
    return {
        "step_s": tuple(map(sum, zip(*phases.values(), strict=True))),
        "phases_s": phases,
        "samples": (32,) * steps,
    }


class EngineAtOnce(Engine):
    """An engine whose one rank has ended well as soon as it is asked for."""

    def ready(self):
        """It runs nothing."""

    def ask(self, launch, tick):
        """A trace where the rank would have left it."""
        Path(launch.scratch, "rank0.json").write_bytes(msgspec.json.encode(trace()))
        tick()
        return Outcome(launch=launch.launch)


@contextmanager
def team(followers, ranks=1, steps=0):
    """A leader's Team and its followers: processes forked from one that has torch loaded, which run no ranks.

    Each sends back at once the traces of `ranks` ranks, of so many steps. Pairs of nodes are not measured.
    """
    from bench.wire import host

    wire = host("127.0.0.1", 0, SECRET)
    words = [str(wire.port), str(followers), str(ranks), str(steps)]
    code = "from tests.self_bench.followers import main; main()"
    nursery = subprocess.Popen([sys.executable, "-c", code, *words], cwd=ROOT, stdin=subprocess.PIPE)
    try:
        with Unmeasured(wire, member(0), mine(), followers + 1, lambda text: None) as found:
            began = time.perf_counter()
            found.gather([])
            found.gathered_s = time.perf_counter() - began
            yield found
    finally:
        nursery.stdin.close()  # its followers have been told that the study is over
        nursery.wait(30)


class Unmeasured(Team):
    """A Team that takes its pairs of nodes as they are."""

    def _measured(self):
        return ()


def member(node):
    """A node at loopback."""
    return Member(node=node, hostname=f"n{node}", address="127.0.0.1", interface="lo")


def launch(nodes, folder):
    """A launch of one rank a node."""
    case = Case(strategy="ddp", nodes=nodes, ranks=1, model="paced", data="device", steps=20)
    return Launch(launch="x", case=case, scratch=str(folder), logs=str(folder), conductor_pid=os.getpid())


def run(found, folder):
    """Seconds of a launch through the Team, and its result."""
    engine = EngineAtOnce(folder / "engine.log")
    asked = launch(found.nodes, folder)
    began = time.perf_counter()
    result, others = found.run(engine, asked, 1, lambda where: None)
    return time.perf_counter() - began, result, others


def main():
    """The process that followers are forked from: torch is loaded, and no store has been made."""
    import torch.distributed  # noqa: F401

    from bench.machine import Host

    port, followers, ranks, steps = map(int, sys.argv[1:])
    traces = tuple(trace(rank, rank, 1, long_columns(steps, seed=rank)) for rank in range(ranks))
    host = Host(hostname="n", cpus_counted=1, cpus_affinity=1, cpus_usable=1)
    mine()  # once for all
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=follow, args=(port, node, traces, host), daemon=True)
        for node in range(1, followers + 1)
    ]
    for process in processes:
        process.start()
    sys.stdin.read()  # until whoever started us ends, or says so
    for process in processes:
        process.join(2)


def follow(port, node, traces, host):
    """One follower, to the end of the study."""
    from bench.follower import Follower
    from bench.wire import join

    class AtOnce(Follower):
        """A follower that runs no ranks: its part is there as soon as it is asked for, and no engine is started."""

        def _stand(self):
            """Nothing is to stand."""

        def _run(self, asked):
            return Part(node=asked.node, host=self._me.hostname, traces=traces)

    AtOnce(join("127.0.0.1", port, SECRET), member(node), host, lambda text: None).serve()
