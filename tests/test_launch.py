"""What a launch's witnesses are taken to say: engine, traces, exit codes, time limit."""

import os
import tempfile

import pytest

from bench import launch as launching
from bench import temporary
from bench.case import Case
from bench.progress import BUILDING, COMPILING, FIELDS, MARKS, RENDEZVOUS, STATE, WINDOW, Motion
from bench.records import Ended, Launch, Outcome, Part
from tests.traces import trace

LAUNCH = Launch(launch="x", case=Case(strategy="ddp", ranks=2), scratch="", logs="", conductor_pid=1)


def judge(outcome, traces, processes=2, lost=None, kills=0, launch=LAUNCH):
    part = Part(outcome=outcome, traces=tuple(traces), lost=lost, oom_kills=kills)
    return launching.judge(launch, [part], processes).failure


def ended(rank, exitcode, died_ns=None, killed=False):
    return Ended(local_rank=rank, pid=100 + rank, exitcode=exitcode, died_ns=died_ns, killed=killed)


def test_two_good_traces_are_a_good_launch():
    """Ranks that ended well and left their traces give no failure."""
    outcome = Outcome(ranks=(ended(0, 0, 5), ended(1, 0, 6)))
    assert judge(outcome, [trace(0), trace(1)]) is None


def test_sigterm_from_outside_names_the_rank_that_got_it():
    """Who died of SIGTERM first was not ended by the agent, whose SIGTERM follows a failure."""
    outcome = Outcome(ranks=(ended(0, -15, 900), ended(1, -15, 500)))
    found = judge(outcome, [])
    assert (found.first_rank, found.reason, found.signal) == (1, "signal", "SIGTERM")


def test_ranks_that_finished_but_did_not_end_count_as_good():
    """All traces are there and a thread of the user's kept a process: the window is kept."""
    outcome = Outcome(ranks=(ended(0, -9, 5, killed=True), ended(1, 0, 6)), timed_out=True)
    assert judge(outcome, [trace(0), trace(1)]) is None


def test_a_hang_on_cpu_names_the_rank_that_is_behind():
    """Fewer marks in the same state: that rank is waited for."""
    outcome = Outcome(timed_out=True, marks_passed=(40, 37), states=(WINDOW, WINDOW), stopped=(False, False))
    found = judge(outcome, [])
    assert (found.reason, found.first_rank) == ("hang", 1)
    assert "rank 1 is furthest behind (rank 0 in window, rank 1 in window)" in found.detail


def test_a_hang_on_a_device_is_not_blamed_on_host_marks():
    """The host runs ahead of a device: marks passed do not say which device hangs."""
    import msgspec

    launch = msgspec.structs.replace(LAUNCH, device_kind="cuda")
    outcome = Outcome(timed_out=True, marks_passed=(37, 40), states=(WINDOW, WINDOW), stopped=(False, False))
    assert judge(outcome, [], launch=launch).first_rank is None
    behind = Outcome(timed_out=True, marks_passed=(0, 40), states=(BUILDING, WINDOW), stopped=(False, False))
    assert judge(behind, [], launch=launch).first_rank == 0


def at_limit(still_s, longest_s, state=WINDOW, stopped=False, **more):
    """A launch of two ranks at its limit of 180 s: 20 of 60 steps in 100 s of window."""
    seen = {"marks_passed": (120, 121), "states": (state, state), "planned": 60, "in_window_s": 100.0} | more
    return Outcome(timed_out=True, stopped=(False, stopped), still_s=still_s, longest_s=longest_s, **seen)


def test_ranks_that_still_move_are_too_slow_and_not_hung():
    """Steps done, steps planned and the time that the pace asks for (a tenth on top) are said; no rank is blamed."""
    found = judge(at_limit((0.1, 1.9), (0.5, 0.5)), [])
    assert (found.reason, found.first_rank) == ("too_slow", None)
    assert found.detail == (
        "time limit of 180 s reached after 20 of 60 steps; about 418 s are needed: raise timeout_s"
    )


def test_a_long_phase_is_no_hang():
    """A rank that has stood still before for as long, and moved again, is at work."""
    assert judge(at_limit((30.0, 30.0), (16.0, 16.0)), []).reason == "too_slow"
    assert judge(at_limit((30.0, 30.0), (14.0, 16.0)), []).reason == "hang"


def test_one_rank_that_stands_still_is_a_hang():
    """One of two still moves, or one is stopped: it hangs."""
    assert judge(at_limit((0.1, 9.0), (0.5, 0.5)), []).reason == "hang"
    assert judge(at_limit((0.1, 0.1), (0.5, 0.5), stopped=True), []).reason == "hang"


def test_compiling_at_the_limit_is_said():
    """torch.compile passes no marks: at the limit it is named, unless a rank is stopped."""
    still = ((60.0, 60.0), (1.0, 1.0))
    found = judge(at_limit(*still, state=COMPILING, in_window_s=None), [])
    assert found.reason == "too_slow"
    assert "while torch.compile worked" in found.detail
    assert judge(at_limit(*still, state=COMPILING, in_window_s=None, stopped=True), []).reason == "hang"
    assert judge(at_limit(*still, state=BUILDING, in_window_s=None), []).reason == "hang"


def test_a_limit_before_the_first_step_promises_no_time():
    """Without a step done there is no pace."""
    found = judge(at_limit((0.1, 0.1), (0.5, 0.5), marks_passed=(0, 0)), [])
    assert found.detail == "time limit of 180 s reached after 0 of 60 steps: raise timeout_s"


def test_motion_is_what_changes_between_looks():
    """Marks and states that change reset a rank's clock; the longest pause is that between two changes."""
    beats = [0] * 2 * FIELDS
    motion = Motion(beats, 2, now_s=0.0)
    beats[STATE] = beats[FIELDS + STATE] = WINDOW
    motion.look(3.0)
    for now_s, rank in ((4.0, 0), (9.0, 0), (10.0, 1)):
        beats[rank * FIELDS + MARKS] += 1
        motion.look(now_s)
    motion.look(12.0)
    assert motion.still_s(13.0) == (4.0, 3.0)
    assert motion.longest_s() == (5.0, 7.0)
    assert motion.in_window_s(13.0) == 10.0
    assert Motion(beats, 2, now_s=0.0).in_window_s(1.0) is None


def test_waiting_for_another_node_is_no_pace():
    """A rank that met the others after 7 s, and then passed a mark a second, is judged by the second."""
    beats = [0] * FIELDS
    beats[STATE] = RENDEZVOUS
    motion = Motion(beats, 1, now_s=0.0)
    for now_s, state in ((7.0, BUILDING), (8.0, WINDOW)):
        beats[STATE] = state
        motion.look(now_s)
    assert motion.longest_s() == (1.0,)


def test_a_failure_of_its_own_outranks_the_time_limit():
    """A rank that raised and peers that then waited to the limit: the exception is the cause."""
    broken = trace(1, status="failed", error_type="ValueError", error="planted", failed_ns=7, cut=None)
    outcome = Outcome(
        timed_out=True, marks_passed=(5, 5), states=(WINDOW, WINDOW), stopped=(False, False), ranks=(ended(0, -9, 9, True), ended(1, 1, 8)),
    )  # fmt: skip
    found = judge(outcome, [broken])
    assert (found.reason, found.first_rank) == ("exception", 1)


def test_a_lost_engine_is_named_with_its_last_words():
    """Without an answer the launch is engine_lost."""
    found = judge(Outcome(), [], lost="the engine died (exit code -9)")
    assert (found.reason, found.first_rank) == ("engine_lost", None)
    assert "exit code -9" in found.detail


def test_a_missing_trace_is_a_failure():
    """A rank that ended with 0 and left nothing is not averaged away."""
    found = judge(Outcome(ranks=(ended(0, 0, 1),)), [trace(0)], processes=2)
    assert found.first_rank == 1


@pytest.mark.parametrize(("length", "usual"), [(36, True), (37, False)])
def test_sockets_go_where_their_paths_fit(monkeypatch, length, usual):
    """In a temporary folder with a long path no socket could be made: theirs is /tmp then."""
    folder = "/" + "t" * (length - 1)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    found = temporary.socket_folder()
    assert found == (folder if usual else "/tmp")
    inside = f"{found}/{temporary.prefix()}12345678/pymp-12345678/listener-12345678"
    assert len(inside) <= 107


def test_scratch_of_dead_conductors_is_swept(tmp_path, monkeypatch):
    """Folders of a conductor that is gone are removed; those of a living one, or of another host or container, stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    owners = (temporary.owner(4194000), temporary.owner(os.getpid()), "4194000.elsewhere", "telemetry")
    dead, alive, elsewhere, other = (tmp_path / f"scalemark-{name}-x" for name in owners)
    for folder in (dead, alive, elsewhere, other):
        folder.mkdir()
    temporary.sweep()
    assert not dead.exists()
    assert all(folder.exists() for folder in (alive, elsewhere, other))


TWO = Launch(
    launch="x", case=Case(strategy="ddp", ranks=1, nodes=2, timeout_s=9), scratch="", logs="", conductor_pid=1
)


def of_nodes(*parts, away=None):
    return launching.judge(TWO, parts, 1, away).failure


def closed(rank):
    """What a rank says whose peer is gone."""
    return trace(
        rank=rank, local_rank=0, status="failed", error_type="DistBackendError", error="Connection closed by peer", failed_ns=9
    )  # fmt: skip


def test_ranks_that_never_met_name_the_node_that_none_came_of():
    """All that came wait in the rendezvous at the time limit: that is its class, and the absent node is named."""
    from bench.progress import RENDEZVOUS

    waiting = Outcome(
        ranks=(ended(0, -9, killed=True),), timed_out=True, states=(RENDEZVOUS,), marks_passed=(0,), stopped=(False,),
        still_s=(9.0,), longest_s=(0.1,),
    )  # fmt: skip
    found = of_nodes(Part(node=0, host="a", outcome=waiting), Part(node=1, host="b", stopped=True))
    assert (found.reason, found.first_rank, found.first_node) == ("rendezvous", None, 1)
    assert found.detail == "the ranks did not all meet: 1 of 2 ranks came within 9 s, none of node 1 (b)"


def test_a_lost_engine_outranks_what_its_peers_say():
    """The engine of node 1 died: the closed connection that rank 0 saw is no cause of its own."""
    victim = Part(node=0, host="a", outcome=Outcome(ranks=(ended(0, 1, 9),)), traces=(closed(0),))
    found = of_nodes(victim, Part(node=1, host="b", lost="the engine died"))
    assert (found.reason, found.first_node) == ("engine_lost", 1)
    assert found.detail == "node 1 (b): the engine died"


def test_a_rank_that_failed_by_itself_outranks_a_lost_node():
    """Node 2 went silent after rank 1 had raised: the exception is what came first."""
    raised = trace(
        rank=1, local_rank=0, status="failed", error_type="ValueError", error="planted", failed_ns=5
    )
    away = launching.Verdict(reason="node_lost", first_rank=None, first_node=1, detail="no sign of life")
    failed = Part(node=1, host="b", outcome=Outcome(ranks=(ended(0, 1, 5),)), traces=(raised,))
    assert of_nodes(failed, away=away).reason == "exception"
    victim = Part(node=0, host="a", outcome=Outcome(ranks=(ended(0, 1, 9),)), traces=(closed(0),))
    assert of_nodes(victim, away=away) == away
