"""What several nodes cost: a launch beside its steps, coordination as nodes are added, traces on their way back."""

import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest

pytest.importorskip("torch")

from bench import nodes as team_module
from bench.joint import Joint
from bench.leading import Asked, lead
from bench.machine import probe_host
from bench.nodes import Team
from bench.plan import make_plan
from bench.stopping import Rules
from bench.store import Store
from bench.study import Study
from tests.self_bench import followers

pytestmark = pytest.mark.self_bench

FIGURE = Path(__file__).parents[2] / "docs/coordination.svg"
FOLLOWERS = (2, 8, 32, 128)
LAUNCHES = 10


class Silent:
    """Nothing is told."""

    def block(self, block, cells): ...
    def launching(self, cell, block): ...
    def progress(self, progress): ...
    def landed(self, record, left_s): ...
    def say(self, text): ...


def timed(monkeypatch, owner, name, spent):
    """Let a function append its seconds to `spent[name]`."""
    plain = getattr(owner, name)

    def run(*args, **options):
        began = time.perf_counter()
        try:
            return plain(*args, **options)
        finally:
            spent[name].append(time.perf_counter() - began)

    monkeypatch.setattr(owner, name, run)


def study(folder, launches):
    """A block of cells on two nodes of two ranks, which differ in their batch; its records."""
    sets = ["strategy=ddp", "nodes=2", "ranks=2", "model=paced", "data=device", "steps=20"]
    batches = "batch=" + ",".join(str(4 + i) for i in range(launches))
    host, asked = probe_host(), Asked(nodes=2)
    plan = make_plan(["single"], host, sets=[*sets, batches], team=asked.plan_nodes())
    store = Store(folder)
    (folder / "logs").mkdir(parents=True)
    with ExitStack() as stack:
        team, box = stack.enter_context(lead(asked, plan, host, ["run", "single"], lambda text: None))
        Study(plan, store, host, Rules(min_launches=1, max_launches=1), Silent(), team, box).run()
    return store.records()[0]


def test_a_launch_of_two_nodes_is_cheap(benchmark, tmp_path, monkeypatch):
    """Two nodes of two ranks on one box: a launch costs at most 1.2 s beside its steps, engines being warm."""
    monkeypatch.chdir(tmp_path)
    spent = defaultdict(list)
    for owner, name in [(Joint, "__init__"), (team_module, "collect"), (Joint, "finish"), (Team, "run")]:
        timed(monkeypatch, owner, name, spent)
    records = benchmark.pedantic(study, (tmp_path / "s", 8), rounds=1)
    warm = [record for record in records if record.order > 0]  # the first waits for its engines
    assert [record.status for record in warm] == ["ok"] * 7
    parts = defaultdict(list)
    for record in warm:
        at, ranks = record.order, record.ranks
        steps_s = record.wall_s - record.overhead_s
        built_s = max((rank.rendezvous_s or 0) + rank.build_s for rank in ranks)
        parts["publish"].append(spent["__init__"][at])
        parts["start ranks and end them"].append(spent["collect"][at] - steps_s - built_s)
        parts["ranks meet and build"].append(built_s)
        parts["parts of the others back"].append(spent["finish"][at])
        parts["telemetry and record"].append(record.wall_s - spent["run"][at])
    overhead_s = median(record.overhead_s for record in warm)
    benchmark.extra_info |= {"overhead_s": overhead_s} | {name: median(s) for name, s in parts.items()}
    print(f"\ntwo nodes of two ranks, beside the steps: {sorted(round(r.overhead_s, 2) for r in warm)}")
    print(
        f"median {overhead_s:.2f} s: " + ", ".join(f"{k} {1e3 * median(s):.0f} ms" for k, s in parts.items())
    )
    assert overhead_s <= 1.2


def coordination(folder):
    """Followers -> seconds of each of ten launches."""
    found = {}
    for count in FOLLOWERS:
        with followers.team(count) as team:
            followers.run(team, folder)
            runs = [followers.run(team, folder) for _ in range(LAUNCHES)]
        assert all(result.failure is None and len(others) == count for _, result, others in runs)
        found[count] = [seconds for seconds, _, _ in runs]
    return found


def test_coordination_grows_slowly(benchmark, tmp_path):
    """Followers that run no ranks: at most 1 s a launch at 128. The growth is drawn."""
    found = benchmark.pedantic(coordination, (tmp_path,), rounds=1)
    middle = {count: median(seconds) for count, seconds in found.items()}
    benchmark.extra_info |= {f"{count}_followers_ms": 1e3 * seconds for count, seconds in middle.items()}
    print()
    for count, seconds in found.items():
        low, high = 1e3 * min(seconds), 1e3 * max(seconds)
        print(f"{count:4} followers: {1e3 * middle[count]:.0f} ms a launch [{low:.0f}, {high:.0f}]")
    draw(found)
    assert middle[128] <= 1.0


def draw(found):
    """Coordination a launch over the number of followers: each launch a dot, their median a line."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    decades = (1, 10, 100, 1000)
    with plt.rc_context({"svg.hashsalt": "scalemark", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
        for count, seconds in found.items():
            axes.plot([count] * len(seconds), [1e3 * s for s in seconds], "o", color="C0", alpha=0.35, ms=4)
        axes.plot(list(found), [1e3 * median(seconds) for seconds in found.values()], color="C0")
        axes.axhline(1000, color="0.5", ls="--", lw=1)
        axes.text(2, 1100, "goal at 128: 1 s", va="bottom", color="0.4")
        axes.set(xscale="log", xticks=FOLLOWERS, xticklabels=FOLLOWERS, xlabel="followers that run no ranks")
        axes.set(yscale="log", yticks=decades, yticklabels=decades, ylim=(1, 2000))
        axes.set(ylabel="coordination, ms a launch")
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(FIGURE, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def test_traces_come_quickly(benchmark, tmp_path):
    """64 ranks of 10,000 steps: from a follower's memory to the leader's in at most 2 s, each number as it was."""
    with followers.team(1, ranks=64, steps=10_000) as team:
        runs = benchmark.pedantic(lambda: [followers.run(team, tmp_path) for _ in range(5)], rounds=1)
    seconds = sorted(seconds for seconds, _, _ in runs)
    (part,) = runs[-1][2]
    assert len(part.traces) == 64
    for rank in (0, 31, 63):
        sent = followers.trace(rank, rank, 1, followers.long_columns(10_000, seed=rank))
        assert part.traces[rank] == sent
    benchmark.extra_info |= {"median_s": median(seconds), "most_s": seconds[-1]}
    print(
        f"\ntraces of 64 ranks of 10,000 steps: {median(seconds):.2f} s [{seconds[0]:.2f}, {seconds[-1]:.2f}]"
    )
    assert median(seconds) <= 2.0
