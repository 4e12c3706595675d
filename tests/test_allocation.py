"""What the environment says about being started by a launcher, and how a wrong start is answered."""

import pytest

from bench.allocation import Allocation, found, narrow, port_of
from bench.errors import UsageError
from bench.hostlist import expand

# as Slurm 22.05 sets them: `sbatch --nodes=2 --ntasks-per-node=1`, then srun; the second task
BATCH = {
    "SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2",
    "SLURM_NODELIST": "n[1-2]", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0",
    "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "1(x2)",
}  # fmt: skip
STEP = BATCH | {
    "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "1", "SLURM_PROCID": "1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.99",
}  # fmt: skip

TORCHRUN = {
    "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1",
    "MASTER_ADDR": "n1", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "r7",
}  # fmt: skip

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}
POD = {"JOB_COMPLETION_INDEX": "3", "SCALEMARK_NODES": "4", "SCALEMARK_LEAD": "ddp-0.ddp:29400"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07],m5", ["n1", "n2", "n3", "n07", "m5"]),
        ("r[1-2]-x[08-10]", ["r1-x08", "r1-x09", "r1-x10", "r2-x08", "r2-x09", "r2-x10"]),
        ("gpu[3,1]-ib,login", ["gpu3-ib", "gpu1-ib", "login"]),
        ("a[1]b[2]c[3]", ["a1b2c3"]),
        ("node-9.site.org", ["node-9.site.org"]),
    ],
)
def test_host_lists_are_expanded_as_slurm_does(text, names):
    """Ranges, lists, leading zeros and several brackets; the order is the list's own (scontrol show hostnames)."""
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["", ",", "n[1-", "n[]", "n[3-1]", "n1]", "n[a-b]", "n[[1]]", "n[1-999999999]"]
)
def test_what_is_no_host_list_is_refused(text):
    """One line with what was found and what is expected."""
    with pytest.raises(UsageError, match=r"host list .*Slurm's syntax, such as n\[1-3,07\],m5"):
        expand(text)


def test_nothing_is_found_where_nobody_started_it():
    """A shell, a container of one pod, stray variables."""
    assert found({}) is None
    assert found({"JOB_COMPLETION_INDEX": "0", "PATH": "/bin"}) is None
    assert found({"RANK": "0", "WORLD_SIZE": "2"}) is None
    assert found({"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}) is None


def test_a_step_of_slurm_says_all():
    """Node, nodes, the first host of the step, and a port that follows from job and step."""
    assert found(STEP) == Allocation(
        launcher="Slurm", nodes=2, node_rank=1, lead=("n1", 20_328), job="41", step="0"
    )


def test_the_step_counts_before_the_job():
    """A step on n3 and n4 of a job of five nodes has two nodes, and n3 leads."""
    job = {"SLURM_JOB_NODELIST": "n[1-5]", "SLURM_NODELIST": "n[1-5]", "SLURM_JOB_NUM_NODES": "5"}
    step = {"SLURM_STEP_NODELIST": "n[3-4]", "SLURM_STEP_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "8"}
    place = found(STEP | job | step)
    assert (place.nodes, place.node_rank, place.lead[0]) == (2, 1, "n3")


def test_a_step_on_one_node_stands_alone():
    """Whatever the job has."""
    assert (
        found(STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n2", "SLURM_NODEID": "0"}) is None
    )


@pytest.mark.parametrize(
    "tasks",
    [
        {"SLURM_STEP_TASKS_PER_NODE": "8(x2)"},
        {"SLURM_STEP_TASKS_PER_NODE": "1,2"},
        {"SLURM_LOCALID": "1"},
        {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "2"},
    ],
)
def test_several_tasks_a_node_are_told_how_to_be_one(tasks):
    """Each would run the study."""
    with pytest.raises(UsageError, match=r"tasks on this node.*srun --ntasks-per-node=1 scalemark run"):
        found(STEP | tasks)


def test_a_batch_script_without_srun_is_told_to_use_it():
    """The script itself runs on the first node only; --nodes 1 says that this is meant."""
    with pytest.raises(UsageError, match=r"job 41 has 2 nodes.*each by srun --ntasks-per-node=1.*--nodes 1"):
        found(BATCH)
    assert found(BATCH, nodes=1) is None
    assert found(BATCH | {"SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1"}) is None


def test_a_persons_shell_in_a_job_is_no_step_of_ours():
    """`srun --pty bash` on one node with several tasks: nothing was started several times."""
    shell = STEP | {"SLURM_PTY_PORT": "40001", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_JOB_NUM_NODES": "1"}
    assert found(shell) is None


def test_ports_are_apart_and_below_those_of_clients():
    """Following jobs and eight steps of one differ; none reaches the ephemeral ports."""
    ports = [port_of(str(job), str(step)) for job in range(7_000_000, 7_000_100) for step in range(8)]
    assert len(set(ports)) == 800 and all(20_000 <= port < 32_000 for port in ports)


def test_nodes_of_the_command_line_must_be_those_started():
    """A number that differs is refused with both numbers; --lead replaces the launcher's own."""
    with pytest.raises(UsageError, match="--nodes 3: Slurm has started 2 nodes"):
        found(STEP, nodes=3)
    assert found(STEP, nodes=2, lead=("10.0.0.1", 7000)).lead == ("10.0.0.1", 7000)


def test_torchrun_with_one_process_a_node_works():
    """Its rank is the node; torchrun's own store keeps MASTER_PORT, the study takes the next one."""
    expected = Allocation(launcher="torchrun", nodes=2, node_rank=1, lead=("n1", 29_401), job="r7")
    assert found(TORCHRUN) == expected
    assert found(TORCHRUN | {"MASTER_PORT": "65535"}).lead == ("n1", 1)
    assert found(STEP | TORCHRUN).launcher == "torchrun"  # the inner one


def test_torchrun_with_several_processes_a_node_is_told_how_to_be_one():
    """The numbers are named, and both ways out."""
    with pytest.raises(UsageError, match=r"LOCAL_WORLD_SIZE=8: torchrun .*8 processes.*--nproc-per-node=1"):
        found(TORCHRUN | {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"})


@pytest.mark.parametrize("local", ["1", "8"])
def test_torchrun_in_each_of_several_tasks_is_named(local):
    """SLURM_NTASKS_PER_NODE=8 and torchrun in each of them."""
    ranks = TORCHRUN | {"WORLD_SIZE": "128", "LOCAL_WORLD_SIZE": local}
    with pytest.raises(UsageError, match=r"torchrun runs inside srun with 8 tasks a node.*without torchrun"):
        found(ranks | {"SLURM_NTASKS_PER_NODE": "8"})


@pytest.mark.parametrize("gone", ["LOCAL_WORLD_SIZE", "MASTER_ADDR"])
def test_a_rank_of_an_unknown_launcher_is_refused(gone):
    """RANK and LOCAL_RANK without the rest, as deepspeed sets them, and a world of one."""
    with pytest.raises(UsageError, match="are set: a launcher such as torchrun has started this as one of"):
        found({name: value for name, value in TORCHRUN.items() if name != gone})
    with pytest.raises(UsageError, match="RANK=0, LOCAL_RANK=0, WORLD_SIZE=1"):
        found(TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"})


@pytest.mark.parametrize(
    ("ranks", "launcher"),
    [(OPEN_MPI, "mpirun (Open MPI)"), (HYDRA, "mpirun (Hydra)"), (STEP | HYDRA, "mpirun (Hydra)")],
)
def test_mpirun_needs_to_be_told_who_leads(ranks, launcher):
    """It gives ranks but no address."""
    with pytest.raises(UsageError, match=r"does not say where its first process is: add --lead HOST:PORT"):
        found(ranks)
    lead = ("n1", 29_400)
    assert found(ranks, lead=lead) == Allocation(launcher=launcher, nodes=2, node_rank=1, lead=lead)


def test_mpirun_with_several_processes_a_node_is_told_how_to_be_one():
    """With the options of both families."""
    with pytest.raises(UsageError, match=r"4 processes on this node.*--map-by ppr:1:node, or -ppn 1.*--lead"):
        found(OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "8"}, lead=("n1", 1))
    assert found(OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}) is None


def test_srun_with_pmi_is_slurm():
    """PMI_RANK alone is set by srun --mpi=pmi2 too."""
    assert found(STEP | {"PMI_RANK": "1", "PMI_SIZE": "2"}).launcher == "Slurm"


def test_a_pod_of_an_indexed_job_says_all():
    """With the variables that the manifest gives; without them the Job is somebody else's."""
    lead = ("ddp-0.ddp", 29_400)
    assert found(POD) == Allocation(launcher="Kubernetes", nodes=4, node_rank=3, lead=lead)
    assert found(POD | {"SCALEMARK_NODES": "1", "JOB_COMPLETION_INDEX": "0"}) is None
    with pytest.raises(UsageError, match="SCALEMARK_LEAD='ddp-0': write HOST:PORT"):
        found(POD | {"SCALEMARK_LEAD": "ddp-0"})


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (STEP | {"SLURM_NODEID": "2"}, "SLURM_NODEID='2' does not fit its 2 nodes"),
        (STEP | {"SLURM_STEP_NUM_NODES": "two"}, "SLURM_STEP_NUM_NODES='two': a number from 1"),
        (POD | {"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX='x': a number from 0"),
    ],
)
def test_numbers_that_do_not_fit_are_named(environ, said):
    """One line instead of a wait for nodes that never come."""
    with pytest.raises(UsageError, match=said):
        found(environ)


def test_a_task_that_sees_too_few_devices_is_told():
    """One visible device where eight are asked for; nothing outside Slurm, or where all are seen."""
    assert narrow(STEP, 8) is None
    text = narrow(STEP | {"CUDA_VISIBLE_DEVICES": "3"}, 8)
    assert "1 of the 8 devices" in text and "CUDA_VISIBLE_DEVICES=3" in text and "--gpus-per-task=8" in text
    assert narrow(STEP | {"CUDA_VISIBLE_DEVICES": "0,1"}, 2) is None
    assert narrow(STEP | {"CUDA_VISIBLE_DEVICES": ""}, 2) is None  # no devices: CPU ranks
    assert narrow({"CUDA_VISIBLE_DEVICES": "3"}, 8) is None
