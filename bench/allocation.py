"""What the environment says about how this process was started: by whom, as which node of how many, who leads.

Launchers only start `scalemark run` once a node; a launcher that starts it once a rank is answered with how
to start it instead.
"""

import re
from collections.abc import Mapping

import msgspec

from bench.environment import parse_visible
from bench.errors import UsageError
from bench.hostlist import expand
from bench.plugins import clip

Environ = Mapping[str, str]
Lead = tuple[str, int]

FIRST_PORT, PORTS = 20_000, 12_000  # below the ports that systems give to outgoing connections (32768 on)
SRUN = "srun --ntasks-per-node=1 scalemark run ..."

# launcher, and its names for this process's number, how many there are, and how many of them on this node
MPI = (
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpirun (MVAPICH2)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("mpirun (Hydra)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)

# what a launcher says about its own ranks: not to be handed on to the ranks of the study
OF_A_RANK = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE",
)  # fmt: skip


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where this node stands among those that a launcher has started."""

    launcher: str  # in words: Slurm, Kubernetes, torchrun, mpirun (Open MPI), ...
    nodes: int
    node_rank: int
    lead: Lead  # host and port of the study's store, on node 0
    job: str | None = None
    step: str | None = None  # of a job of Slurm's: several may run at once


def found(environ: Environ, nodes: int | None = None, lead: Lead | None = None) -> Allocation | None:
    """This process's place among several nodes that a launcher started; None where it stands alone.

    `nodes` and `lead` are what the command line says, if anything: `nodes=1` asks for a study on this node
    alone, and `lead` overrides the launcher's. Raises UsageError, with how to start it instead, where a
    launcher has started several processes a node, or none on the other nodes, or does not say who leads.
    """
    place = _torchrun(environ) or _mpi(environ, lead) or _slurm(environ, nodes) or _kubernetes(environ)
    if place is None:
        return None
    if nodes not in (None, place.nodes):
        raise UsageError(
            f"--nodes {nodes}: {place.launcher} has started {place.nodes} nodes; leave --nodes out, or start"
            f" {nodes} of them (cells that use fewer: the axis nodes)"
        )
    return msgspec.structs.replace(place, lead=lead or place.lead)


def narrow(environ: Environ, ranks: int) -> str | None:
    """One line where this node's task may use fewer devices than the `ranks` asked of it, inside Slurm; else None."""
    seen = parse_visible(environ.get("CUDA_VISIBLE_DEVICES"))
    if "SLURM_JOB_ID" not in environ or not seen or len(seen) >= ranks:
        return None
    return (
        f"Slurm lets this task see {len(seen)} of the {ranks} devices asked for (CUDA_VISIBLE_DEVICES={','.join(seen)}):"
        f" give one task all devices of its node: srun --ntasks-per-node=1 --gpus-per-task={ranks}"
    )


def _torchrun(environ: Environ) -> Allocation | None:
    """torchrun, torch.distributed.launch and what is built on them: they name each rank."""
    if "RANK" not in environ or "LOCAL_RANK" not in environ:
        return None
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    told = ", ".join(f"{name}={environ[name]}" for name in names if name in environ)
    world, local = _count(environ, "WORLD_SIZE"), _count(environ, "LOCAL_WORLD_SIZE")
    tasks = _tasks_a_node(environ)
    if tasks > 1 and local:
        raise UsageError(
            f"{told}: torchrun runs inside srun with {tasks} tasks a node, so each starts ranks of its own, and"
            f" scalemark starts ranks itself: {SRUN}, without torchrun"
        )
    if local is not None and local > 1:
        raise UsageError(
            f"{told}: torchrun (or torch.distributed.launch) has started {local} processes on this node, and"
            " scalemark starts ranks itself: start one a node, torchrun --nproc-per-node=1, or run it without"
        )
    if local != 1 or world in (None, 1) or "MASTER_ADDR" not in environ:
        raise UsageError(
            f"{told} are set: a launcher such as torchrun has started this as one of its ranks, and"
            " scalemark starts ranks itself: run it once, without a launcher, or unset them"
        )
    port = _count(environ, "MASTER_PORT", least=0) or 0
    lead = environ["MASTER_ADDR"], port % 65_535 + 1  # torchrun's own store listens on MASTER_PORT
    return _place("torchrun", environ, "RANK", world, lead, environ.get("TORCHELASTIC_RUN_ID"))


def _mpi(environ: Environ, lead: Lead | None) -> Allocation | None:
    """mpirun of three families. None of them says where the first process is."""
    for launcher, rank, size, local_size in MPI:
        world, local = _count(environ, size), _count(environ, local_size)
        if rank not in environ or world is None or local is None:
            continue
        if local > 1:
            raise UsageError(
                f"{rank}={environ[rank]}, {local_size}={local}: {launcher} has started {local} processes on this"
                " node, and scalemark starts ranks itself: start one a node (mpirun --map-by ppr:1:node, or -ppn 1)"
                " with --lead HOST:PORT, HOST being the first of its hosts, or run it without mpirun"
            )
        if world == 1:
            return None
        if lead is None:
            raise UsageError(
                f"{rank}={environ[rank]}, {size}={world}: {launcher} does not say where its first process is:"
                " add --lead HOST:PORT, HOST being the first of its hosts and PORT any free port there"
            )
        return _place(launcher, environ, rank, world, lead, None)
    return None


def _slurm(environ: Environ, nodes: int | None) -> Allocation | None:
    """A step of Slurm. What is said of the step counts before what is said of the job, which may be larger."""
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID"))
    if "SLURM_JOB_ID" not in environ:
        return None
    if step is None or "SLURM_PTY_PORT" in environ:  # a batch script, or a person's shell in the job
        _check_not_a_step(environ, nodes)
        return None
    tasks = _tasks_a_node(environ)
    if tasks > 1:
        raise UsageError(
            f"Slurm has started {tasks} tasks on this node, and scalemark starts ranks itself: one task a node, {SRUN}"
        )
    here = _count(environ, "SLURM_STEP_NUM_NODES") or _job_nodes(environ)
    listed = environ.get("SLURM_STEP_NODELIST") or _job_list(environ)
    if here == 1 or listed is None:
        return None
    job = environ["SLURM_JOB_ID"]
    lead = expand(listed)[0], port_of(job, step)
    place = _place("Slurm", environ, "SLURM_NODEID", here, lead, job)
    return msgspec.structs.replace(place, step=step)


def port_of(job: str, step: str = "0") -> int:
    """The port of a step: 20000 + (8 x job + step) modulo 12000, the same on every node, 20000 to 31999.

    So eight steps of a job that run at once, and jobs that follow each other on a node, have different ones.
    """
    number = [int(text) if text.isascii() and text.isdigit() else 0 for text in (job, step)]
    return FIRST_PORT + (8 * number[0] + number[1]) % PORTS


def _check_not_a_step(environ: Environ, nodes: int | None) -> None:
    """Raise UsageError where a job of several nodes runs this on its first one alone, unless that is asked for."""
    several = _job_nodes(environ)
    if several > 1 and nodes != 1:
        raise UsageError(
            f"Slurm job {environ['SLURM_JOB_ID']} has {several} nodes, and this runs on one of them only: start it on"
            f" each by {SRUN}, or stay on this one by --nodes 1"
        )


def _job_nodes(environ: Environ) -> int:
    return _count(environ, "SLURM_JOB_NUM_NODES") or _count(environ, "SLURM_NNODES") or 1


def _job_list(environ: Environ) -> str | None:
    return environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")


def _tasks_a_node(environ: Environ) -> int:
    """The most tasks that Slurm started on a node: `2(x3),1` is 2. 1 where it says nothing."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_NTASKS_PER_NODE") or "1"
    counts = [int(word) for word in re.findall(r"(\d+)(?:\(x\d+\))?(?:,|$)", text)]
    return max(1, *counts, (_count(environ, "SLURM_LOCALID", least=0) or 0) + 1)


def _kubernetes(environ: Environ) -> Allocation | None:
    """A pod of an Indexed Job that `scalemark k8s` wrote: it names nodes and leader in the pod's environment."""
    size, lead = environ.get("SCALEMARK_NODES"), environ.get("SCALEMARK_LEAD")
    if "JOB_COMPLETION_INDEX" not in environ or size is None or lead is None:
        return None
    host, _, port = lead.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise UsageError(f"SCALEMARK_LEAD={clip(lead)!r}: write HOST:PORT")
    several = _count(environ, "SCALEMARK_NODES") or 1
    if several == 1:
        return None
    return _place("Kubernetes", environ, "JOB_COMPLETION_INDEX", several, (host, int(port)), None)


def _place(
    launcher: str, environ: Environ, rank: str, nodes: int | None, lead: Lead, job: str | None
) -> Allocation:
    """An Allocation whose node rank fits its nodes. Raises UsageError for another."""
    node_rank = _count(environ, rank, least=0)
    if node_rank is None or nodes is None or node_rank >= nodes:
        raise UsageError(
            f"{launcher}: {rank}={environ.get(rank)!r} does not fit its {nodes} nodes; give --nodes, --node-rank and"
            " --lead yourself"
        )
    return Allocation(launcher=launcher, nodes=nodes, node_rank=node_rank, lead=lead, job=job)


def _count(environ: Environ, name: str, least: int = 1) -> int | None:
    """A variable as a number; None where it is unset. Raises UsageError for anything else."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UsageError(f"{name}={clip(text)!r}: a number from {least} is expected there")
    return int(text)
