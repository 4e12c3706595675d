"""`scalemark k8s`: the manifest of a study on several nodes, for Kubernetes."""

import os
from pathlib import Path
from typing import Annotated

import typer

from bench.verbs import _elsewhere as e
from bench.verbs import _options as o

WAIT = "10m"  # one machine may have pulled the image long before another


def k8s(
    suites: o.Suites,
    nodes: e.Nodes,
    image: Annotated[str, typer.Option("--image", help="The image, with the command scalemark in it.")],
    ngpu: e.Ngpu = None,
    gpus: Annotated[bool, typer.Option("--gpus/--no-gpus", help="Ask for GPUs, or run CPU ranks.")] = True,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the Job (default: after the suites).")
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Kubernetes' namespace.")] = None,
    secret_name: Annotated[
        str | None,
        typer.Option(
            "--secret-name", help="A Secret that is there, with the key 'secret' (default: a new one)."
        ),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            "--claim", metavar="PVC", help="A PersistentVolumeClaim (ReadWriteMany) for the results."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the manifest goes (default: printed)."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study in the claim.")] = False,
    sets: o.Sets = None,
    budget: o.Budget = None,
    quick: e.Quick = False,
    strict: o.Strict = False,
    aa: o.Aa = False,
    fail_fast: e.FailFast = False,
    trace: e.Trace = False,
    seed: e.Seed = 0,
    interface: e.Interface = None,
    node_wait: Annotated[
        str, typer.Option("--node-wait", metavar="10m", help="How long pods wait for each other.")
    ] = WAIT,
) -> None:
    """Write an Indexed Job for Kubernetes, with its Service and Secret.

    Nothing is run: kubectl apply does that. The manifest is checked against the published schemas of Kubernetes
    in this project's tests; it has not been tried on a cluster.
    """
    import secrets

    from bench.launchers import k8s as launcher

    o.check_limits(quick, strict, aa)
    words = e.run_words(
        suites, sets=sets, ngpu=ngpu, budget=budget, interface=interface, seed=seed,
        quick=quick, strict=strict, aa=aa, fail_fast=fail_fast, trace=trace, resume=resume, wait=node_wait,
    )  # fmt: skip
    e.check_gpus(gpus, ngpu)
    job = launcher.Pods(
        name=name or "-".join(Path(suite).stem for suite in suites),
        words=words,
        nodes=nodes,
        ngpu=ngpu,
        gpus=gpus,
        image=image,
        namespace=namespace,
        secret=None if secret_name else secrets.token_hex(16),
        secret_name=secret_name,
        claim=claim,
    )
    text = launcher.text(job)
    if output is None:
        typer.echo(text, nl=False)
    else:
        _write(Path(output), text)
        typer.echo(f"{output}: start it by kubectl apply -f {output}")


def _write(path: Path, text: str) -> None:
    """Write a manifest that only this user can read: it holds a secret. Raises UsageError where that cannot be."""
    from bench.errors import UsageError

    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); name another file by -o") from None


PLUGIN = k8s
