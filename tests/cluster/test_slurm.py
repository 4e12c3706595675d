"""Slurm for real: a job that is submitted and followed, srun of the plain command, a requeued job that resumes."""

import pytest

from tests.cluster import slurm
from tests.cluster.namespaces import until
from tests.cluster.study import SCALEMARK, by_nodes, check_two_nodes, folder, shared_cache
from tests.e2e.command import records

pytestmark = pytest.mark.cluster


def test_a_job_is_submitted_followed_and_its_results_taken_in(slurm_cluster):
    """`scalemark slurm` writes a script, waits for its job, and ends with the table; the results are two nodes'."""
    place = folder(slurm_cluster, "job")
    words = ["slurm", "mine.toml", "--nodes", "2", "--ngpu", "1", "--no-gpus", "--quick", "-o", "results/s"]
    done = slurm_cluster.run("n0", [SCALEMARK, *words], cwd=place, env=shared_cache(), timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    check_two_nodes(place / "results/s", ["n1", "n2"])
    script = (place / "results/s.sbatch").read_text()
    assert "#SBATCH --ntasks-per-node=1" in script
    assert "DDP × 2 (2 nodes)" in done.stdout


@pytest.mark.cluster_long
def test_srun_of_the_same_command_works(slurm_cluster):
    """Inside an allocation each task finds its place by itself; the job's secret file is gone afterwards."""
    place = folder(slurm_cluster, "srun", nodes="[2]")
    words = [
        "srun",
        "--nodes=2",
        "--ntasks-per-node=1",
        SCALEMARK,
        "run",
        "mine.toml",
        "--quick",
        "-o",
        "results/s",
    ]
    done = slurm_cluster.run("n0", words, cwd=place, env=shared_cache(), timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [rank.host for rank in by_nodes(place / "results/s")[2].ranks] == ["n1", "n2"]
    assert sorted(path.name for path in place.iterdir()) == ["mine.toml", "results"]


@pytest.mark.cluster_long
def test_several_tasks_a_node_are_answered_in_one_line(slurm_cluster):
    """Two tasks on a node: exit 2, and the message names the option that puts it right."""
    place = folder(slurm_cluster, "tasks")
    words = ["srun", "--nodes=1", "--ntasks-per-node=2", SCALEMARK, "run", "mine.toml", "--quick"]
    done = slurm_cluster.run("n0", words, cwd=place, env=shared_cache(), timeout=120)
    assert done.returncode == 2
    assert "--ntasks-per-node=1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.cluster_long
def test_a_job_whose_node_is_lost_is_requeued_and_resumes(slurm_cluster):
    """A worker is switched off in the middle: Slurm starts the job again elsewhere, and it goes on with the study."""
    place = folder(slurm_cluster, "requeued", nodes="[1, 2]", steps=100)
    words = ["slurm", "mine.toml", "--nodes", "2", "--ngpu", "1", "--no-gpus", "--no-wait", "-o", "results/s"]
    done = slurm_cluster.run("n0", [SCALEMARK, *words], cwd=place, env=shared_cache(), timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    study = place / "results/s"

    def landed():
        return records(study) if (study / "launches.jsonl").exists() else []

    until(lambda: len(landed()) >= 2, "two launches", seconds=120)
    slurm_cluster.kill("n2")
    until(lambda: "PENDING" in slurm.jobs(slurm_cluster).values(), "the job in the queue again", seconds=90)
    before = len(landed())
    (job,) = slurm.jobs(slurm_cluster)
    slurm_cluster.run(
        "n0", ["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True
    )  # else: in 2 min
    until(
        lambda: any(r.requested.nodes == 2 and r.status == "ok" for r in landed()[before:]), "it went on", 180
    )
    assert {rank.host for record in landed()[before:] for rank in record.ranks} == {"n1", "n3"}
    assert len({record.launch for record in landed()}) == len(landed())
