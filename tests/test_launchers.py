"""Launchers: hosts by name, commands for shells, the batch script, the manifest, and nobody left behind."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UsageError
from bench.launchers import _away, _remote, _sbatch, hand, k8s, slurm, ssh
from bench.launchers._hosts import Host, fewest_slots, parse_hosts, read_hosts
from bench.launchers._lead import is_here, lead_host, real_name
from bench.launchers._yaml import document

GOLDEN = Path(__file__).parent / "fixtures/launchers"
WORDS = ("run", "ddp", "--set", "model=a b")
HOSTS = (
    Host(name="n1"),
    Host(name="n2", user="me", port=2222, python="/opt/my py/bin/python", dir="~/my work"),
)
SSH = ssh.Nodes(
    name="ddp-1", words=WORDS, nodes=2, hosts=HOSTS, lead=("n1", 29_400), python="/opt/py/bin/python", folder="/home/me/x y"
)  # fmt: skip


def test_hosts_of_the_command_line():
    """Names, users, ports and addresses of both kinds, in order."""
    found = parse_hosts("n1, me@n2:2222,[::1],you@[fe80::1]:22,::2,10.0.0.1")
    assert [(host.user, host.name, host.port) for host in found] == [
        (None, "n1", None), ("me", "n2", 2222), (None, "::1", None), ("you", "fe80::1", 22), (None, "::2", None),
        (None, "10.0.0.1", None),
    ]  # fmt: skip


def test_a_host_file_says_more_of_each_host(tmp_path):
    """Slots, user, port, python and directory; comments and blank lines are nothing."""
    path = tmp_path / "hosts"
    path.write_text(
        "# two nodes\n\nn1 slots=8  # the first\nn2 slots=4 user=me port=2222 python=/opt/py dir='my work'\nme@n3\n"
    )
    assert read_hosts(path) == (
        Host(name="n1", slots=8),
        Host(name="n2", slots=4, user="me", port=2222, python="/opt/py", dir="my work"),
        Host(name="n3", user="me"),
    )
    assert fewest_slots(read_hosts(path)) == 4 and fewest_slots([Host(name="n1")]) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--hosts: names no host"),
        ("n1,n1", "n1 is named twice"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is no host"),
        ("-l@n1", "'-l@n1' is no host"),
        ("n1;rm", "'n1;rm' is no host"),
        ("n 1", "'n 1' is no host"),
        ("@n1", "'@n1' is no host"),
        ("n1:70000", "port=70000: a number from 1 to 65535"),
    ],
)
def test_what_is_no_host_is_refused(text, said):
    """Nothing reaches ssh as an option or a shell as a word of its own."""
    with pytest.raises(UsageError, match=said):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "n1 slot=8",
            "hosts:2: unknown name 'slot'; known: slots, user, port, python, dir; did you mean 'slots'",
        ),
        ("n1 slots=many", "hosts:2: slots=many: a number from 1 to 4096"),
        ("n1 slots", "hosts:2: 'slots': write slots=VALUE, once"),
        ("n1 slots=1 slots=2", "hosts:2: 'slots=2': write slots=VALUE, once"),
        ("me@n1 user=you", "hosts:2: user stands there twice"),
        ("n1 user=-x", "hosts:2: user='-x' is no user's name"),
        ("n1 dir='x", "hosts:2: No closing quotation"),
        ("n0", "hosts: n0 is named twice"),
    ],
)
def test_a_slip_in_a_host_file_is_named_with_its_line(tmp_path, line, said):
    """File, line, what is wrong, what is allowed."""
    path = tmp_path / "hosts"
    path.write_text(f"n0\n{line}\n")
    with pytest.raises(UsageError, match=said):
        read_hosts(path)


def test_by_hand_the_same_command_is_typed_on_every_node():
    """With its number, under the host's name; an IPv6 address of the leader stands in brackets."""
    job = hand.PLUGIN.job(name="s", words=WORDS, nodes=2, hosts=HOSTS, lead=("fd00::1", 29_400))
    assert hand.text(job).splitlines() == [
        "# on n1, which leads and has the results",
        "scalemark run ddp --set 'model=a b' --nodes 2 --node-rank 0 --lead '[fd00::1]:29400'",
        "# on n2",
        "scalemark run ddp --set 'model=a b' --nodes 2 --node-rank 1 --lead '[fd00::1]:29400'",
    ]


def test_ssh_gets_options_a_host_and_one_text():
    """No pseudo-terminal, no questions; user and port as options; the host after --, so it is no option."""
    *options, host, command = ssh.argv(SSH, 1)
    assert options[0] == "ssh" and options[-5:] == ["-p", "2222", "-l", "me", "--"] and host == "n2"
    assert {"-T", "-oBatchMode=yes", "-oControlMaster=no"} < set(options)
    assert command.startswith("exec sh -c ")


def test_a_remote_shell_sees_the_words_as_they_were(tmp_path):
    """Through two shells: folder, variables and arguments with spaces, quotes and dollars arrive unchanged."""
    (tmp_path / "my work").mkdir()
    show = tmp_path / "my work" / "it's python"
    show.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([os.getcwd(), os.environ['NCCL_X'], os.environ['SCALEMARK_END_WITH_STDIN'], sys.argv[1:]]))\n"
    )
    show.chmod(0o755)
    nasty = """a 'b' "c" $HOME `id` \\ ; | & * ! ~"""
    host = Host(name="n1", dir="~/my work", python="~/my work/it's python")
    job = ssh.Nodes(
        name="s", words=("run", nasty), nodes=1, hosts=(host,), lead=("n1", 1), environ={"NCCL_X": nasty}
    )
    done = subprocess.run(
        ["/bin/sh", "-c", ssh.argv(job, 0)[-1]], env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True
    )  # fmt: skip
    folder, variable, end, words = json.loads(done.stdout)
    assert (folder, variable, end) == (str(tmp_path / "my work"), nasty, "1")
    assert words == ["-P", "-m", "bench", "run", nasty, "--nodes", "1", "--node-rank", "0", "--lead", "n1:1"]


def test_speed_variables_go_along_and_those_of_one_machine_do_not():
    """Nor what looks like a secret."""
    environ = {"NCCL_DEBUG": "WARN", "CUDA_VISIBLE_DEVICES": "0", "OMPI_COMM_WORLD_RANK": "0", "HOME": "/x"}
    assert ssh.carried(environ | {"NCCL_TOKEN": "x", "OMP_NUM_THREADS": "4", "GLOO_X": "a\nb"}) == {
        "NCCL_DEBUG": "WARN",
        "OMP_NUM_THREADS": "4",
    }


def test_who_leads():
    """This machine where it is the first host, by loopback if all are here; else the first host by its name."""
    assert is_here(Host(name="localhost")) and is_here(Host(name="127.0.0.1"))
    assert not is_here(Host(name="192.0.2.1")) and not is_here(Host(name="localhost", port=2222))
    assert lead_host(parse_hosts("localhost,127.0.0.1")) == "127.0.0.1"
    assert lead_host(parse_hosts("192.0.2.1,localhost")) == "192.0.2.1"


def test_a_host_that_cannot_be_reached_from_here_is_named():
    """With why: it is this machine's own address on the way there that is not known."""
    with pytest.raises(UsageError, match=r"^no-such\.invalid: .*no-such\.invalid has no address.* --lead"):
        lead_host(parse_hosts("localhost,no-such.invalid"))


def test_ssh_is_asked_for_a_name_once_a_host(tmp_path, monkeypatch):
    """Each question is a process; hosts behind the first one that is elsewhere need none."""
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nfor last; do :; done\necho "$last" >> {tmp_path}/asked\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    real_name.cache_clear()
    hosts = parse_hosts("localhost,192.0.2.1,192.0.2.2,192.0.2.3")
    assert lead_host(hosts) == lead_host(hosts)
    assert (tmp_path / "asked").read_text().split() == ["localhost", "192.0.2.1"]
    real_name.cache_clear()


# A stand-in for ssh: takes its options and host, then gives the command to a shell as sshd does.
STAND_IN = '#!/bin/sh\nfor last; do :; done\nexec /bin/sh -c "$last"\n'

# A stand-in for a node's command: what `scalemark run` does at its start, and a child as its engine is one.
NODE = """#!{python}
import os, subprocess, sys, time
sys.path.append({root!r})
from bench.launchers._stdin import end_with_stdin
secret = end_with_stdin()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(secret, os.getpid(), "SCALEMARK_END_WITH_STDIN" in os.environ, os.read(0, 9), flush=True)
try:
    time.sleep({sleep})
finally:
    child.kill()
sys.exit({code})
"""


@pytest.fixture
def remote_job(tmp_path, monkeypatch):
    """A job of one node behind the stand-in for ssh; its command sleeps, then ends with a code."""
    (tmp_path / "ssh").write_text(STAND_IN)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def job(sleep=60, code=0):
        node = tmp_path / "node"
        root = str(Path(__file__).parents[1])
        node.write_text(NODE.format(python=sys.executable, root=root, sleep=sleep, code=code))
        node.chmod(0o755)
        return ssh.Nodes(
            name="s", words=("run",), nodes=1, hosts=(Host(name="n1"),), lead=("n1", 1), python=str(node)
        )

    return job


def until(condition):
    """Wait for something that is about to be true."""
    for _ in range(2000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_node_gets_the_secret_on_its_input_and_ends_with_it(remote_job):
    """The secret is on no command line, children get neither variable nor input, and leaving stops the node."""
    job, lines = remote_job(), []
    assert not any("s3cret" in word for word in ssh.argv(job, 0))
    with _remote.Remote(job, [0], "s3cret", lines.append) as remote:
        assert until(lambda: lines)
        label, secret, pid, *rest = lines[0].split()
        assert (label, secret, rest) == ("n1:", "s3cret", ["False", "b''"])
        assert not remote.ended()
        remote.stop()
    assert not alive(int(pid)) and remote.ended()[0].code != 0


def test_killing_the_client_leaves_no_node_running(remote_job, tmp_path):
    """SIGKILL of the process that holds the pipe: the node's input ends, and so does the node."""
    code = (
        "import sys; sys.path.append(sys.argv[1]); import pickle, time\n"
        "from bench.launchers._remote import Remote\n"
        "job = pickle.loads(bytes.fromhex(sys.argv[2]))\n"
        "with Remote(job, [0], 's3cret', lambda line: print(line, flush=True)): time.sleep(60)\n"
    )
    root = str(Path(__file__).parents[1])
    client = subprocess.Popen(
        [sys.executable, "-P", "-c", code, root, pickle.dumps(remote_job()).hex()], stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    pid = int(client.stdout.readline().split()[2])
    assert alive(pid)
    client.send_signal(signal.SIGKILL)
    client.wait()
    client.stdout.close()
    assert until(lambda: not alive(pid))


def test_a_node_that_ends_early_is_named_with_its_last_words(remote_job):
    """Which node, its exit code, what it said last; a code of a study under way is no failed start."""
    lines = []
    with _remote.Remote(remote_job(sleep=0, code=1), [0], "s3cret", lines.append, plain=0) as remote:
        assert until(remote.ended)
        ended = remote.ended()[0]
    assert ended.code == 1 and not ended.never_began and lines[0].startswith("s3cret ")
    assert ended.why == f"n1 (node 0): exit code 1: {lines[-1]}"


def test_a_node_without_python_or_connection_never_began(remote_job, tmp_path):
    """127 says where a Python can be named; 255 is ssh's own, with its complaint."""
    job = remote_job()
    (tmp_path / "node").unlink()
    with _remote.Remote(job, [0], "s3cret", lambda line: None) as remote:
        assert until(remote.ended)
        missing = remote.ended()[0]
    assert missing.never_began and "exit code 127" in missing.why and "python=" in missing.why
    (tmp_path / "ssh").write_text(
        "#!/bin/sh\necho 'ssh: connect to host n1 port 22: No route to host' >&2\nexit 255\n"
    )
    with _remote.Remote(job, [0], "s3cret", lambda line: None) as remote:
        assert until(remote.ended)
        refused = remote.ended()[0]
    assert refused.never_began
    assert refused.why == "n1 (node 0): ssh failed: ssh: connect to host n1 port 22: No route to host"
    assert not _remote.Ended(0, "n1", 255, 600.0, "Timeout, server n1 not responding.").never_began


# A stand-in for a leader's command: a study in the folder after -o, a line more each time it is run.
LEADER = """#!/bin/sh
read -r secret
while [ "$1" != -o ]; do shift; done
mkdir -p "$2"; echo {} > "$2/study.json"; echo line >> "$2/launches.jsonl"; pwd > "$2/where"
echo "report: scalemark report '$2'"; exit 1
"""


def test_a_study_led_elsewhere_is_fetched_and_goes_on(remote_job, tmp_path):
    """Its folder comes here, its exit code too, nothing stays there; run again, it starts from what is here."""
    job, root, said = remote_job(), tmp_path / f"my results/s {os.getpid()}", []
    (tmp_path / "node").write_text(LEADER)
    for times in (1, 2):
        assert _away.conduct(job, root, "s3cret", said.append) == 1
        assert len((root / "launches.jsonl").read_text().splitlines()) == times
    assert said[-1] == f"results of n1 are here: {root}"
    assert said[-2] == f"report: scalemark report '{root}'"  # not the folder there, which is gone
    assert not list(Path("/tmp").glob(f"scalemark-*/{root.name}"))


def test_results_that_cannot_be_brought_stay_and_are_told_of(remote_job, tmp_path):
    """The host is there and this disk is not: which host, which folder, why; nothing is removed there."""
    job, said = remote_job(), []
    (tmp_path / "node").write_text(LEADER)
    (tmp_path / "tar").write_text("#!/bin/sh\nexit 2\n")
    (tmp_path / "tar").chmod(0o755)
    assert _away.conduct(job, tmp_path / "results/s", "s3cret", said.append) == 1
    (there,) = re.findall(
        r"^what n1 has recorded was not brought here, and lies there in (\S+): .*copy.*failed", said[-1]
    )
    assert (Path(there) / "study.json").exists()
    shutil.rmtree(Path(there).parent)


def test_a_study_that_does_not_begin_elsewhere_leaves_nothing(remote_job, tmp_path):
    """One line with the reason, no folder here."""
    job = remote_job()
    (tmp_path / "node").unlink()
    with pytest.raises(UsageError, match=r"n1 \(node 0\): exit code 127"):
        _away.conduct(job, tmp_path / "results/s", "s3cret", lambda line: None)
    assert not (tmp_path / "results").exists()


def test_a_secret_that_does_not_come_is_an_error():
    """Standard input ends at once: one line, and nothing goes on without a secret."""
    code = "from bench.launchers._stdin import end_with_stdin; end_with_stdin()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "SCALEMARK_END_WITH_STDIN": "1"}, input="", capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode != 0 and "standard input has no secret" in done.stderr


def batch(**more):
    told = {
        "name": "ddp-1",
        "words": WORDS,
        "nodes": 4,
        "ngpu": 8,
        "python": "/opt/py/bin/python",
        "results": "results/ddp-1",
    }
    return slurm.Batch(**(told | more))


def test_the_batch_script_is_the_one_kept():
    """To the letter: what a site reads and edits."""
    job = batch(partition="gpu", time="1:00:00", account="x", options=("constraint=h100", "--comment=a b"))
    assert slurm.text(job) == (GOLDEN / "slurm.sbatch").read_text()


def test_the_batch_script_is_good_bash():
    """As bash reads it, with and without requeueing, and with names that need quotes."""
    for job in (batch(), batch(requeue=False, results="results/a b'c", gpus=False, cpus=4, ngpu=None)):
        done = subprocess.run(["bash", "-n"], input=slurm.text(job), capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def directives(job):
    lines = slurm.text(job).splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def test_the_batch_script_asks_for_what_is_needed():
    """One task a node; whole nodes, or CPUs beside others; GPUs only where there are any; the user's options last."""
    assert {"--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--exclusive", "--mem=0"} <= set(
        directives(batch())
    )
    shared = directives(batch(gpus=False, cpus=16))
    assert "--cpus-per-task=16" in shared and not {"--exclusive", "--gpus-per-node=8"} & set(shared)
    assert "--cpus-per-task=16 " in slurm.text(batch(cpus=16)).split("exec srun")[1]
    assert directives(batch(options=("qos=high", "-p x")))[-2:] == ["--qos=high", "'-p x'"]
    assert "--output=results/50%%.log" in directives(batch(results="results/50%"))
    with pytest.raises(UsageError, match="cannot hold"):
        slurm.text(batch(options=("--comment=a\nsrun evil",)))


# Stand-ins for Slurm's commands: srun runs the command with the script's input, scontrol notes what it was asked.
FAKE_SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'
FAKE_SCONTROL = '#!/bin/bash\necho "$@" >> "$NOTED"\n'
FAKE_RUN = """#!/bin/bash
echo "$@" > words; read -r secret; echo "$secret" > secret; touch up
read -r more; [ -z "$ENDS" ] && exit 130; exit "$ENDS"
"""


@pytest.fixture
def slurm_box(tmp_path):
    """A folder with a script whose commands are the stand-ins."""
    for name, text in (("srun", FAKE_SRUN), ("scontrol", FAKE_SCONTROL), ("run", FAKE_RUN)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    job = batch(python=str(tmp_path / "run"))
    (tmp_path / "job").write_text(slurm.text(job))
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NOTED": str(tmp_path / "noted")}

    def start(**more):
        return subprocess.Popen(["bash", "job"], cwd=tmp_path, env=environ | {"SLURM_JOB_ID": "7"} | more)

    return tmp_path, start


@pytest.mark.parametrize(("restarts", "requeued"), [("3", True), ("10", False)])
def test_before_its_time_limit_a_job_stops_and_is_requeued(slurm_box, restarts, requeued):
    """Slurm's signal closes the nodes' input; an interrupted study is queued again, but not for ever."""
    folder, start = slurm_box
    job = start(SLURM_RESTART_COUNT=restarts)
    assert until((folder / "up").exists)
    job.send_signal(signal.SIGUSR1)
    assert job.wait() == 130
    assert (folder / "noted").exists() == requeued
    assert not requeued or (folder / "noted").read_text() == "requeue 7\n"
    assert len((folder / "secret").read_text().strip()) == 32
    assert (folder / "words").read_text().split()[-2:] == ["-o", "results/ddp-1"]


def test_a_requeued_job_resumes_and_gives_its_code(slurm_box):
    """With a study in its folder the nodes are told --resume; a study at its end is not queued again."""
    folder, start = slurm_box
    (folder / "results/ddp-1").mkdir(parents=True)
    (folder / "results/ddp-1/study.json").write_text("{}")
    job = start(ENDS="4")
    assert until((folder / "up").exists)
    job.send_signal(signal.SIGUSR1)
    assert job.wait() == 4 and not (folder / "noted").exists()
    assert (folder / "words").read_text().split()[-3:] == ["-o", "results/ddp-1", "--resume"]


def test_the_verb_prints_the_script_without_slurm(capsys, monkeypatch, tmp_path):
    """The words of scalemark run with what was asked; GPUs are assumed where Slurm cannot say."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    verb(
        ["ddp", "--nodes", "2", "--ngpu", "8", "--set", "model=mlp", "--quick", "--budget", "5m", "--dry-run"]
    )
    script = capsys.readouterr().out
    assert "-m bench run ddp --set model=mlp --nproc 8 --budget 5m --quick" in script
    assert "#SBATCH --gpus-per-node=8" in script and "study=results/ddp-1" in script
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match=r"sbatch is not on the path.*--dry-run"):
        verb(["ddp", "--nodes", "2", "--ngpu", "8"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ddpp", "--nodes", "2"], "unknown name 'ddpp'.*did you mean 'ddp'"),
        (["ddp", "--nodes", "2"], "--ngpu: say how many GPUs a node.*--no-gpus"),
        (["ddp", "--nodes", "2", "--no-gpus", "--resume"], "--resume: name the study by -o"),
        (
            ["ddp", "--nodes", "2", "--no-gpus", "-o", "new", "--resume"],
            "new: there is no study to go on with",
        ),
        (
            ["ddp", "--nodes", "2", "--no-gpus", "-o", "old"],
            "old: holds a study already; go on with it by --resume",
        ),
        (["ddp", "--nodes", "2", "--budget", "soon"], "--budget 'soon'"),
    ],
)
def test_slips_are_told_before_a_script_is_written(monkeypatch, tmp_path, words, said):
    """Unknown suites, no number of GPUs, a study that is there or is not."""
    (tmp_path / "results/old").mkdir(parents=True)
    (tmp_path / "results/old/study.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=said):
        verb(words)
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["old"]


def verb(words, name="slurm"):
    """Call a verb as the command line does."""
    from typer.main import get_command

    from bench.cli import app

    get_command(app).main([name, *words], standalone_mode=False)


def test_a_manifest_with_a_secret_is_for_its_owner_only(monkeypatch, tmp_path, capsys):
    """Mode 600, a new secret each time; with a Secret that is there, none is written."""
    monkeypatch.chdir(tmp_path)
    words = ["ddp", "--nodes", "2", "--ngpu", "1", "--image", "x"]
    found = set()
    for _ in range(2):
        verb([*words, "-o", "job.yaml"], "k8s")
        assert (tmp_path / "job.yaml").stat().st_mode & 0o777 == 0o600
        found.add(next(yaml.safe_load_all((tmp_path / "job.yaml").read_text()))["stringData"]["secret"])
    assert len(found) == 2 and all(len(secret) == 32 for secret in found)
    capsys.readouterr()
    verb([*words, "--secret-name", "mine"], "k8s")
    assert "stringData" not in capsys.readouterr().out


def answer(monkeypatch, answers):
    """Slurm's commands answer in turn, each with (exit code, standard output, standard error)."""
    left = {name: list(given) for name, given in answers.items()}

    def ask(command):
        given = left[command[0]]
        code, out, err = given.pop(0) if len(given) > 1 else given[0]
        return subprocess.CompletedProcess(command, code, out, err)

    monkeypatch.setattr(_sbatch, "_ask", ask)


def test_sbatch_gives_a_job_or_one_line(monkeypatch):
    """The id, without the cluster's name; a refusal in Slurm's words."""
    answer(monkeypatch, {"sbatch": [(0, "123;lab\n", "")]})
    assert _sbatch.submit(Path("x.sbatch")) == "123"
    said = "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid partition name specified\n"
    answer(monkeypatch, {"sbatch": [(1, "", said)]})
    expected = "x.sbatch: sbatch: invalid partition specified: nope; Batch job submission failed: Invalid partition name specified"
    with pytest.raises(UsageError, match=expected):
        _sbatch.submit(Path("x.sbatch"))


DONE = "JobId=7 JobName=x JobState={} Reason={} Requeue=1 ExitCode={} NodeList=n[1-2] BatchHost=n1\n"


def test_a_job_is_followed_to_its_end(monkeypatch, tmp_path):
    """Each state once, with its reason; silence is borne; a state on the way to the queue again is not the end."""
    queue = [
        (0, "PENDING|Resources|\n", ""), (0, "PENDING|Resources|\n", ""), (1, "", "slurm_load_jobs error: Unable to contact"),
        (0, "RUNNING|None|n[1-2]\n", ""), (0, "NODE_FAIL|None|n[1-2]\n", ""), (0, "PENDING|BeginTime|\n", ""),
        (0, "RUNNING|None|n[1-2]\n", ""), (1, "", "slurm_load_jobs error: Invalid job id specified"),
    ]  # fmt: skip
    known = [
        (0, DONE.format("NODE_FAIL", "None", "0:0"), ""),
        (0, DONE.format("FAILED", "NonZeroExitCode", "1:0"), ""),
    ]
    answer(monkeypatch, {"squeue": queue, "scontrol": known})
    log, said, shown = tmp_path / "log", [], []
    log.write_text("old\nnew\n")
    state = _sbatch.follow("7", log, 4, said.append, shown.append, poll_s=0)
    assert said == [
        "job 7: pending (Resources)", "job 7: running on n[1-2]", "job 7: node fail", "job 7: pending (BeginTime)",
        "job 7: running on n[1-2]", "job 7: failed (NonZeroExitCode)",
    ]  # fmt: skip
    assert (state.name, state.exit_code, "".join(shown)) == ("FAILED", 1, "new\n")


def test_a_job_that_slurm_has_forgotten_is_looked_up_in_its_accounts(monkeypatch):
    """sacct, then its file of completed jobs; where there is neither, the study itself has to tell."""
    gone = (1, "", "slurm_load_jobs error: Invalid job id specified")
    answer(
        monkeypatch,
        {
            "squeue": [gone],
            "scontrol": [gone],
            "sacct": [(1, "", "disabled"), (0, "7|TIMEOUT\n7.0|CANCELLED\n", "")],
        },
    )
    assert _sbatch.look("7") == _sbatch.State("TIMEOUT")
    answer(monkeypatch, {"squeue": [gone], "scontrol": [gone], "sacct": [(1, "", "disabled")]})
    assert _sbatch.look("7").name == "COMPLETED" and _sbatch.look("7").exit_code is None


def test_a_job_that_can_never_start_is_told_so(monkeypatch, tmp_path):
    """More nodes than the partition has: Slurm would keep it waiting without an end."""
    ended = (0, DONE.format("CANCELLED", "None", "0:0"), "")
    answer(
        monkeypatch,
        {
            "squeue": [(0, "PENDING|PartitionConfig|\n", ""), (0, "CANCELLED|None|\n", "")],
            "scontrol": [ended],
        },
    )
    said = []
    _sbatch.follow("7", tmp_path / "log", 0, said.append, said.append, poll_s=0)
    assert said[0] == "job 7: pending (PartitionConfig); it cannot start as it is: scancel 7"


def pods(**more):
    told = {
        "name": "DDP_1",
        "words": WORDS,
        "nodes": 4,
        "ngpu": 8,
        "image": "site/torch:2",
        "secret": "5ec2e7",
    }
    return k8s.Pods(**(told | more))


def test_the_manifest_is_the_one_kept():
    """To the letter: what a person reads and edits."""
    assert k8s.text(pods(namespace="team-a", claim="results")) == (GOLDEN / "k8s.yaml").read_text()


@pytest.mark.parametrize("version", ["1.25", kubernetes_validate.latest_version()])
@pytest.mark.parametrize(
    "job",
    [
        pods(),
        pods(secret=None, secret_name="mine", claim="pvc"),
        pods(gpus=False),
        pods(namespace="x", ngpu=None),
    ],
)
def test_the_manifest_fits_the_published_schemas(job, version):
    """Read back as YAML, every resource is known and has no field that the schema has not."""
    resources = list(yaml.safe_load_all(k8s.text(job)))
    assert resources == k8s.manifests(job)
    assert [one["kind"] for one in resources][-2:] == ["Service", "Job"]
    for one in resources:
        kubernetes_validate.validate(one, version, strict=True)  # raises for a resource it does not know


def test_a_claim_is_said_to_need_many_mounts():
    """Pods on machines of their own mount it at once; one pod may have a claim of any mode."""
    said = "results, each on a machine of its own: it must be of a class with the access mode ReadWriteMany"
    assert said in k8s.text(pods(claim="results"))
    assert "ReadWriteMany" not in k8s.text(pods()) + k8s.text(pods(claim="results", nodes=1))


def test_the_pods_find_their_leader():
    """Pod 0 has the host name NAME-0 under the Service, and every pod is told; the secret comes from the Secret."""
    secret, service, job = k8s.manifests(pods())
    pod = job["spec"]["template"]["spec"]
    told = {
        one["name"]: one.get("value") or one["valueFrom"]["secretKeyRef"]
        for one in pod["containers"][0]["env"]
    }
    assert service["metadata"]["name"] == pod["subdomain"] == job["metadata"]["name"] == "ddp-1"
    assert (
        service["spec"]["selector"] == {"job-name": "ddp-1"} and service["spec"]["publishNotReadyAddresses"]
    )
    assert told["SCALEMARK_LEAD"] == f"ddp-1-0.ddp-1:{service['spec']['ports'][0]['port']}"
    assert told["SCALEMARK_NODES"] == "4" and job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    key = told["SCALEMARK_SECRET"]
    assert (key["name"], secret["stringData"][key["key"]]) == (secret["metadata"]["name"], "5ec2e7")
    assert "5ec2e7" not in json.dumps(job)


@pytest.mark.parametrize(
    ("name", "dns"),
    [
        ("ddp", "ddp"),
        ("My_Suite.v2", "my-suite-v2"),
        ("2nodes", "scalemark-2nodes"),
        ("é", "scalemark"),
        ("a" * 80, "a" * 50),
    ],
)
def test_names_are_made_fit_for_dns(name, dns):
    """Small letters, digits and '-', a letter first, short enough for a pod's name."""
    assert k8s.dns_name(name) == dns


def test_a_name_that_kubernetes_would_refuse_is_refused_here():
    """Before a file is written."""
    with pytest.raises(UsageError, match="--namespace 'Team A': a name there has small letters"):
        k8s.text(pods(namespace="Team A"))


keys = st.text(
    max_size=80
)  # YAML reads a key of up to 1,024 characters as written; escaped, each may take ten
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["yes", "No", "null", "1e3", "0x1", "~", "- a", "a: b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(keys, plain, max_size=4))
def test_any_plain_data_comes_back_from_yaml(data):
    """A YAML library reads what was written, whatever the strings are."""
    assert yaml.safe_load(document(data)) == data
