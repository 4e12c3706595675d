"""Kubernetes: an Indexed Job, one pod a node, with a headless Service that names them and a Secret."""

import re
from typing import Any

from bench.errors import UsageError
from bench.launchers._job import Job, address
from bench.launchers._yaml import document
from bench.plugins import Launcher, clip

PORT = 29_400
RESULTS = "/results"
KEY = "secret"
LONGEST = 50  # of a name: a pod's has its number and five letters more, and 63 are allowed
LABEL = "job-name"  # set by Kubernetes, in all its versions
HOST = "kubernetes.io/hostname"


class Pods(Job, frozen=True, kw_only=True):
    """A job of pods. `words` say nothing of where the results go."""

    image: str = "scalemark"  # has the command scalemark, and the user's code
    namespace: str | None = None
    secret: str | None = None  # of the study, to be written down; None: it is there as `secret_name`
    secret_name: str | None = None
    claim: str | None = (
        None  # a PersistentVolumeClaim (ReadWriteMany) for results; None: they end with the pod
    )
    gpu_resource: str = "nvidia.com/gpu"


def text(job: Pods) -> str:
    """The manifest."""
    return HEAD.format(name=clip(job.name), where=_where(job), claim=_claim(job)) + (
        "---\n".join(map(document, manifests(job)))
    )


def manifests(job: Pods) -> list[dict[str, Any]]:
    """Secret (where it is to be written), Service and Job, as plain data. Raises UsageError for a bad name."""
    name = dns_name(job.name)
    for what, given in (
        ("--namespace", job.namespace),
        ("--secret-name", job.secret_name),
        ("--claim", job.claim),
    ):
        if given is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", given):
            raise UsageError(f"{what} {clip(given)!r}: a name there has small letters, digits and '-' only")
    about: dict[str, Any] = {"name": name, **({"namespace": job.namespace} if job.namespace else {})}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": about,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # the nodes find each other before they are ready
            "selector": {LABEL: name},
            "ports": [{"name": "lead", "port": PORT}],
        },
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": about,
        "type": "Opaque",
        "stringData": {KEY: job.secret},
    }
    return [*([secret] if job.secret is not None else []), service, _job(job, name, about)]


def dns_name(text: str) -> str:
    """A study's name as Kubernetes takes it (RFC 1035): small letters, digits, '-', a letter first, 50 at most."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = plain if plain[:1].isalpha() else f"scalemark-{plain}"
    return name[:LONGEST].strip("-")


def _job(job: Pods, name: str, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": about,
        "spec": {
            "completions": job.nodes,
            "parallelism": job.nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": {"app.kubernetes.io/name": "scalemark"}},
                "spec": _pod(job, name),
            },
        },
    }


def _pod(job: Pods, name: str) -> dict[str, Any]:
    results = {"persistentVolumeClaim": {"claimName": job.claim}} if job.claim else {"emptyDir": {}}
    apart = {"labelSelector": {"matchLabels": {LABEL: name}}, "topologyKey": HOST}
    return {
        "subdomain": name,
        "restartPolicy": "Never",
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "containers": [_container(job, name)],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "results", **results},
        ],
    }


def _container(job: Pods, name: str) -> dict[str, Any]:
    of_secret = {"name": job.secret_name or name, "key": KEY}
    return {
        "name": "scalemark",
        "image": job.image,
        "command": ["scalemark", *job.words, "-o", f"{RESULTS}/{name}"],
        "env": [
            {"name": "SCALEMARK_NODES", "value": str(job.nodes)},
            {"name": "SCALEMARK_LEAD", "value": address(f"{name}-0.{name}", PORT)},
            {"name": "SCALEMARK_SECRET", "valueFrom": {"secretKeyRef": of_secret}},
        ],
        **_resources(job),
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "results", "mountPath": RESULTS},
        ],
    }


def _resources(job: Pods) -> dict[str, Any]:
    """Devices, or as many CPUs as there are CPU ranks."""
    if job.ngpu is None:
        return {}
    return {"resources": {"limits": {job.gpu_resource if job.gpus else "cpu": str(job.ngpu)}}}


def _claim(job: Pods) -> str:
    """What is to be known of where the results go."""
    return NO_CLAIM if job.claim is None else CLAIM.format(claim=job.claim) if job.nodes > 1 else ""


def _where(job: Pods) -> str:
    return f" --namespace {job.namespace}" if job.namespace else ""


HEAD = """\
# scalemark: {name}. One pod a node, each on a machine of its own; pod 0 leads and writes the results.
#   kubectl apply -f FILE; kubectl logs{where} -f -l app.kubernetes.io/name=scalemark --prefix
# The image needs the command scalemark, and your own code where a suite names it.
{claim}"""

CLAIM = """\
# Every pod mounts {claim}, each on a machine of its own: it must be of a class with the access mode ReadWriteMany.
"""

NO_CLAIM = """\
# Results end with pod 0, whose log has the table: name a PersistentVolumeClaim (--claim) to keep them.
"""

PLUGIN = Launcher("an Indexed Job for Kubernetes (scalemark k8s); written, not run", Pods, text)
