"""Measure a training loop that stays where it is: in the user's own script, under the user's own launcher.

    watched = watch(model)                          # on every rank, after wrapping
    for epoch in range(epochs):
        for batch in watched.loader(loader):
            ...                                     # the user's own step, unchanged

Hooks on the model and on torch's optimizers mark the phases. After `steps` batches they are gone, rank 0 writes
a study that `scalemark report` reads, and the loop goes on as if nothing had been there. A call with wrong
arguments raises at once, as any call does; from then on what goes wrong in here becomes one line of warning: no
training ends for want of a measurement.
"""

import atexit
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from bench import watch_facts as facts
from bench.hostfacts import affinity
from bench.machine import cpu_quota, usable_cpus
from bench.memory import MemoryWindow
from bench.readback import Witness
from bench.records import Effective, RankTrace
from bench.watch_checks import MISTAKES, UNUSED, Seen, same_epoch
from bench.watch_hooks import Loader, Recorder
from bench.watch_marks import DATA_WAIT, EventStamps, HostStamps, by_phase, phases_s
from bench.watch_study import Packet, collected, write_study
from bench.workload import leading_size

_numbers = itertools.count()
_running: list["Watch"] = []


def watch(
    model: nn.Module,
    *,
    steps: int = 100,
    samples: Callable[[Any], int] = leading_size,
    output: str | os.PathLike[str] | None = None,
) -> "Watch":
    """Watch the training of `model`: the module that the loop calls, wrapped where it is wrapped.

    Call it on every rank, once the process group is there. `steps` batches are measured, warm-up included;
    `samples(batch)` counts what a batch holds; `output` is the study's folder (default:
    results/watch-SCRIPT-TIME). Of a model that is being watched the Watch it has is returned, and a line says so.
    Raises TypeError or ValueError where an argument is not one of these.
    """
    facts.check_arguments(model, steps, samples, output)
    running = next((one for one in _running if one.model is model), None)
    if running is None:
        return Watch(model, steps, samples, output)
    if not running.rank:
        _say(
            f"this {facts.class_name(model)} is watched already: the first watch(...) goes on; call it once,"
            " before the loop over epochs"
        )
    return running


class Watch:
    """A loop that is being watched. That ends by itself, by `done()`, by `with`, or with the script."""

    def __init__(
        self,
        model: nn.Module,
        steps: int,
        samples: Callable[[Any], int],
        output: str | os.PathLike[str] | None,
    ) -> None:
        self.over = False
        self.model: Any = model
        self.rank = facts.own_rank()
        self._wanted, self._count, self._output = steps, samples, output
        self._key = f"scalemark/watch/{next(_numbers)}"
        self._began_ns = 0  # 0: no batch has been asked for
        self._written = False  # by this rank
        self._epochs: list[int] = []
        self._passes = 0
        self._recorder: Any = None
        self._loader: Any = None
        self._first_batch: Any = None
        atexit.register(self._at_exit)
        _running.append(self)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(f"the loop ended with {kind.__name__}" if kind else None)

    def loader(self, loader: Any) -> Any:
        """The training loader, to be iterated over in its place: a batch of it is a step."""
        return Loader(self, loader)

    def done(self) -> None:
        """The loop is over on this rank: what was measured so far is the result."""
        self._end()

    def pass_begins(self, loader: Any) -> None:
        """The loop begins to go through the loader."""
        if self.over and not self._written:
            return
        with self._safely():
            epoch = facts.epoch_of(loader)
            self._epochs += [] if epoch is None else [epoch]
            self._passes += 1
            if not self._began_ns:
                self._begin(loader)
            elif self._written and len(self._epochs) == 2 and same_epoch(tuple(self._epochs)):
                _say(MISTAKES["set-epoch"].text(epoch=epoch, passes=2))  # the study is closed

    def batch_asked(self) -> None:
        """The loop wants the next batch."""
        if self.over:
            return
        with self._safely():
            self._recorder.asked()
            if self._recorder.trouble is not None:
                raise self._recorder.trouble
            if len(self._recorder.steps) >= self._wanted:
                self._end()

    def batch_there(self, batch: Any) -> None:
        """The loop gets a batch."""
        if self.over:
            return
        with self._safely():
            if self._first_batch is None:
                self._first_batch = batch
            self._recorder.there(self._size(batch))

    def batch_dropped(self) -> None:
        """The batch asked for last is no step."""
        if not self.over:
            self._recorder.drop()

    def _size(self, batch: Any) -> int:
        try:
            return int(self._count(batch))
        except TypeError as error:
            raise TypeError(str(error).replace("Workload(", "watch(")) from None

    def _begin(self, loader: Any) -> None:
        self._loader = loader
        self._place = place = facts.find_place(self.model)
        self._store = _store() if place.world_size > 1 else None
        self._backend = dist.get_backend() if self._store is not None else None
        module = place.module if place.accelerated else None
        self._recorder = Recorder(EventStamps(module) if module is not None else HostStamps())
        counted = module if hasattr(module, "reset_peak_memory_stats") else None
        self._memory = MemoryWindow(counted, place.devices)
        self._witness: Any = Witness(self.model)
        self._recorder.attach(self.model)
        self._memory.start()
        self._recorder.clock.sync()
        self._began_ns = time.monotonic_ns()

    def _end(self, trouble: str | None = None) -> None:
        """Take the hooks off and hand the numbers over, once."""
        if self.over:
            return
        self._close()
        if not (self._began_ns or trouble or self.rank == 0):
            return  # rank 0 says it for all
        with self._safely():
            if not self._began_ns:
                raise RuntimeError(trouble or UNUSED)
            self._recorder.detach()
            if trouble or not self._recorder.steps:
                raise RuntimeError(trouble or self._why_nothing())
            self._recorder.clock.sync()
            self._hand_over(self._packet())
        # a group that is still held when the interpreter ends may abort it
        self._recorder = self._first_batch = self._loader = self._store = self.model = self._witness = None

    def _hand_over(self, packet: Packet) -> None:
        """To rank 0 by the group's store: no collective, so that no rank can be left waiting in one."""
        if self._place.rank > 0:
            if self._store is not None:
                self._store.set(f"{self._key}/{self._place.rank}", msgspec.json.encode(packet).decode())
            return
        others = collected(self._store, self._key, self._place.world_size)
        store, mistakes = write_study([packet, *others], self._output, self._began_ns)
        self._written = True
        done = f"{len(packet.trace.step_s)} steps watched; read them with: scalemark report {store.root}"
        _say(done, *mistakes)

    def _why_nothing(self) -> str:
        name, batches = type(self.model).__name__, self._recorder.idle
        return (
            f"the watched {name} was called to train in none of {batches} batches; watch the module that the loop"
            " calls (under DDP that must be the wrapped one, or gradients are not exchanged)"
        )

    def _at_exit(self) -> None:
        """With the script. One that failed leaves no study, and its other ranks are not waited for."""
        failed = getattr(sys, "last_value", None)
        self._end(f"the script ended with {type(failed).__name__}" if failed is not None else None)

    def _close(self) -> None:
        self.over = True
        atexit.unregister(self._at_exit)
        if self in _running:
            _running.remove(self)

    @contextmanager
    def _safely(self) -> Iterator[None]:
        """What fails in here ends the watching, not the training."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the training's
            self._close()
            if self._recorder is not None:
                self._recorder.detach()
            _say(f"no study is written: {error or type(error).__name__}")

    def _packet(self) -> Packet:
        recorder, place, loader = self._recorder, self._place, self._loader
        columns = phases_s(recorder.steps, recorder.clock)
        step_s = columns.sum(1)
        samples = tuple(step.samples for step in recorder.steps)
        found = facts.settings(
            self.model, recorder.optimizer, loader, self._first_batch, self._witness, place
        )
        group = {"world_size": place.world_size, "backend": self._backend}  # it may be gone by now
        found = msgspec.structs.replace(found, batch=max(samples), **group)
        trace = RankTrace(
            launch="",
            rank=place.rank,
            local_rank=place.local_rank,
            node=place.node,
            host=socket.gethostname(),
            pid=os.getpid(),
            status="ok",
            clock="events" if place.accelerated else "cpu",
            first_batch_s=float(columns[0, DATA_WAIT]),
            first_step_s=float(step_s[0]),
            step_s=tuple(step_s.tolist()),
            phases_s=by_phase(columns, place.accelerated),
            samples=samples,
            segments=(len(samples),),
            effective=found,
            counts=facts.counts(loader, place, samples, self._passes),
            memory=self._memory.end(),
        )
        case = facts.requested(found, self.model, recorder.optimizer, loader, len(samples))
        return Packet(case=case, trace=trace, seen=self._seen(found, columns))

    def _seen(self, found: Effective, columns: np.ndarray) -> Seen:
        recorder, place = self._recorder, self._place
        strategy = facts.strategy_of(self.model, recorder.optimizer, place.world_size)
        return Seen(
            steps=len(columns),
            world=place.world_size,
            world_asked=int(os.environ.get("WORLD_SIZE") or place.world_size),
            local_rank=place.local_rank,
            model=facts.class_name(self.model),
            wrapped=strategy != "own",
            wrapper=found.wrapper,
            device=found.device,
            device_index=place.device.index if place.accelerated else None,
            device_count=torch.accelerator.device_count() if place.accelerated else 0,
            sampler=facts.unshared_sampler(self._loader),
            epochs=tuple(self._epochs),
            gradients_kept=bool(recorder.gradients_left) and all(recorder.gradients_left),
            optimizer_steps=recorder.optimizer_steps,
            rebuilt=recorder.rebuilt,
            norms=found.batch_norm_layers,
            synced=found.sync_bn_layers,
            num_workers=found.num_workers,
            cpus=usable_cpus(affinity(), cpu_quota()),
            local_ranks=max(int(os.environ.get("LOCAL_WORLD_SIZE") or place.world_size), 1),
            threads=found.threads,
            waited=float(columns[:, DATA_WAIT].sum() / columns.sum()),
        )


def _store() -> Any:
    """The store of the process group, kept: the script may destroy the group before it ends."""
    return dist.distributed_c10d._get_default_store()


def _say(*lines: str) -> None:
    """Lines of their own, wherever the script's output stands: in one piece, for other ranks print too."""
    text = "".join(f"scalemark: {line}\n" for line in lines)
    print(f"\n{text}", end="", file=sys.stderr, flush=True)
