"""torch's elastic agent as it is used here: ranks where they were asked for, their processes made known."""

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo


class LoopbackRendezvous(RendezvousHandler):
    """A rendezvous of one node: a store on a free loopback port, which the ranks use as well."""

    def __init__(self, run_id: str, timeout: timedelta) -> None:
        self._run_id, self._timeout = run_id, timeout
        self._store: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return "scalemark-loopback"

    def next_rendezvous(self) -> RendezvousInfo:
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        port = listener.getsockname()[1]
        self._store = TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            timeout=self._timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),  # torch would listen on every address
        )
        return RendezvousInfo(self._store, 0, 1, RendezvousStoreInfo("127.0.0.1", port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """A rendezvous is used once."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._store = None
        return True


class StudyRendezvous(LoopbackRendezvous):
    """One of several nodes, at the place that the study gave it. Its ranks meet the others in the study's store."""

    def __init__(self, run_id: str, timeout: timedelta, node: int, nodes: int, store: str) -> None:
        super().__init__(run_id, timeout)
        self._node, self._nodes = node, nodes
        host, _, port = store.rpartition(":")
        self._where = RendezvousStoreInfo(host, int(port))

    def get_backend(self) -> str:
        return "scalemark-study"

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(HashStore(), self._node, self._nodes, self._where)


class Agent(LocalElasticAgent):
    """The local agent, telling `started` which processes it made and keeping their exit codes."""

    def __init__(self, *args: Any, started: Callable[[dict[int, int]], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._started = started
        self._processes: list[Any] = []

    def _start_workers(self, worker_group: Any) -> dict[int, Any]:
        pids = super()._start_workers(worker_group)
        context = getattr(self._pcontext, "_pc", None)
        self._processes = list(getattr(context, "processes", []))
        self._started(dict(pids))
        return pids

    def _exit_barrier(self) -> None:
        """Nobody waits for other agents: the store is not one of theirs, and the conductors know who has ended."""

    def exitcodes(self) -> dict[int, int | None]:
        """Exit code of every local rank; negative: a signal; None: not known."""
        return {local_rank: process.exitcode for local_rank, process in enumerate(self._processes)}
