"""What is asked of several nodes: options that go together, what a launcher says, how hosts over ssh are told."""

import pytest
from typer.testing import CliRunner

from bench import asked as asking
from bench import leading
from bench.asked import Asked, from_environment, over_ssh
from bench.cli import app
from bench.errors import UsageError
from bench.launchers._hosts import parse_hosts
from bench.launchers.ssh import command
from bench.netns import MOST_NODES
from bench.verbs._elsewhere import run_words
from tests.hosts import cpu_host
from tests.test_allocation import STEP

HERE = parse_hosts("localhost,127.0.0.1")
AWAY = parse_hosts("192.0.2.1,192.0.2.2")


def test_more_nodes_than_a_box_has_links_for_are_refused(monkeypatch):
    """With the number; without --link they are agents like any others, and cells with a link are skipped for it."""
    monkeypatch.setattr(asking, "why_not", lambda: None)
    many = Asked(nodes=MOST_NODES + 1, link="1gbit")
    with pytest.raises(UsageError, match=rf"^--link 1gbit: .* {MOST_NODES} nodes at most"):
        many.checked().plan_nodes()
    assert f"{MOST_NODES} nodes at most" in (Asked(nodes=MOST_NODES + 1).plan_nodes().no_link or "")
    assert Asked(nodes=MOST_NODES, link="1gbit").plan_nodes().no_link is None


def test_steps_of_one_job_have_secrets_of_their_own():
    """They may run at once, and the first to end removes its file."""
    files = {from_environment(Asked(), STEP | {"SLURM_STEP_ID": step}, None).secret_file for step in "01"}
    assert files == {".scalemark-41.0.secret", ".scalemark-41.1.secret"}


def test_a_lead_beside_hosts_is_where_node_0_is_reached():
    """Its name and port, wherever the first host is; without one they are found."""
    told = Asked(hosts=AWAY, lead="gate:29400").checked()
    assert over_ssh(told, ["run"]).lead == ("gate", 29400)
    name, port = over_ssh(Asked(hosts=AWAY, lead="gate").checked(), ["run"]).lead
    assert (name, 20_000 <= port < 32_000) == ("gate", True)
    assert over_ssh(Asked(hosts=AWAY).checked(), ["run"]).lead[0] == "192.0.2.1"
    assert leading._own_address(Asked(hosts=HERE, lead="localhost:29400"), None, cpu_host()) == (
        "127.0.0.1",
        29400,
    )
    assert leading._own_address(Asked(hosts=HERE), None, cpu_host()) == ("127.0.0.1", 0)
    with pytest.raises(
        UsageError, match=r"^--lead 192\.0\.2\.7 is 192\.0\.2\.7, which is no address of this node"
    ):
        leading._own_address(Asked(hosts=HERE, lead="192.0.2.7:29400"), None, cpu_host())


def test_a_lead_that_is_none_is_refused_beside_hosts():
    """Before any host is asked."""
    with pytest.raises(UsageError, match="write HOST:PORT"):
        Asked(hosts=HERE, lead="localhost:0").checked()


def test_nodes_that_the_leader_starts_get_its_interface():
    """Nobody else tells them; the study's options stay here."""
    words = leading.started_words(Asked(hosts=HERE, interface="eth1"), ["run", "ddp"])
    assert words == ("run", "ddp", "--interface", "eth1")
    assert leading.started_words(Asked(hosts=HERE), ["run", "ddp"]) == ("run", "ddp")
    job = over_ssh(Asked(hosts=HERE, nodes=2), words, ("10.0.0.1", 29400))
    said = command(job, 1)
    assert said.endswith("run ddp --interface eth1 --nodes 2 --node-rank 1 --lead 10.0.0.1:29400")


def test_a_study_that_is_led_elsewhere_gets_all_options(monkeypatch, tmp_path):
    """What changes results or waiting reaches the first host; a slip in one is told here."""
    seen = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bench.launchers._away.conduct", lambda job, *_: seen.append(job) or 0)
    words = ["--devices", "1,0", "--node-wait", "5m", "--interface", "eth1", "--lead", "gate:29400"]
    done = CliRunner().invoke(app, ["run", "ddp", "--hosts", "192.0.2.1,192.0.2.2", *words])
    assert done.exit_code == 0, done.output
    (job,) = seen
    assert list(job.words[2:]) == ["--devices", "1,0", "--interface", "eth1", "--node-wait", "5m"]
    assert job.lead == ("gate", 29400)
    with pytest.raises(UsageError, match="--node-wait 'soon'"):
        run_words(["ddp"], wait="soon")


def test_a_study_led_elsewhere_that_is_stopped_says_how_to_go_on(monkeypatch, tmp_path):
    """With this command's words, not those of the other host; nothing where nothing was brought here."""
    monkeypatch.chdir(tmp_path)
    words = ["run", "ddp", "--hosts", "192.0.2.1,192.0.2.2", "-o", "results/s"]
    monkeypatch.setattr("sys.argv", ["scalemark", *words])

    def stopped(job, root, *_, brings=True):
        if brings:
            root.mkdir(parents=True)
            (root / "study.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.launchers._away.conduct", lambda *told: stopped(*told, brings=False))
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.output) == (130, "")
    monkeypatch.setattr("bench.launchers._away.conduct", stopped)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    said = "stopped; everything measured is kept. Go on with: scalemark run ddp --hosts 192.0.2.1,192.0.2.2"
    assert done.output == f"{said} -o results/s --resume\n"
