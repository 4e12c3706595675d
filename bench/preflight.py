"""Before a study: build a model once, in a process of its own, and say what it brings."""

import os
import subprocess
import sys
import tempfile
from typing import Any

import msgspec

from bench import guard
from bench.case import Case, canonical
from bench.errors import UsageError
from bench.legal import Brought
from bench.machine import own_python
from bench.plugins import clip

LIMIT_S = 300.0


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    brought: Brought | None = None
    error: str | None = None


def brought_by(case: Case) -> Brought:
    """What the model of a case brings. Raises UsageError, one line, if it cannot be built or pickled."""
    try:
        code, out, errors = _built(canonical(case))
    except subprocess.TimeoutExpired:
        raise UsageError(f"model {clip(case.model)!r}: building it took more than {LIMIT_S:.0f} s") from None
    try:
        answer = msgspec.json.decode(out.splitlines()[-1], type=_Answer)
    except (IndexError, msgspec.DecodeError):
        lines = errors.decode(errors="replace").strip().splitlines() or ["no message"]
        raise UsageError(
            f"model {clip(case.model)!r}: the process that built it ended with {code}: {clip(lines[-1], 200)}"
        ) from None
    if answer.brought is None:
        raise UsageError(str(answer.error))
    return answer.brought


def _built(case: bytes) -> tuple[int, bytes, bytes]:
    """Exit code and both streams of the process that builds a model; what it has started ends with it.

    The streams are files: a child that the user's code leaves behind would hold pipes open.
    """
    command = own_python("import os; sys.path.append(os.getcwd()); from bench.preflight import main; main()")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, str(os.getpid())],
            stdin=subprocess.PIPE, stdout=out, stderr=errors, start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(case, timeout=LIMIT_S)
        finally:
            guard.kill_group(process.pid)
            code = process.wait()
        out.seek(0)
        errors.seek(0)
        return code, out.read(), errors.read()


def main() -> None:
    """Read a case from standard input, answer with one JSON line, whatever the user's code prints.

    argv[1]: the process that asks; this one ends with it.
    """
    guard.end_with(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    case = msgspec.json.decode(sys.stdin.buffer.read(), type=Case)
    try:
        answer = _Answer(brought=_inspect(case))
    except UsageError as error:
        answer = _Answer(error=str(error))
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def _image(sample: Any) -> bool:
    """Whether samples are square colour images, as the data sources make them."""
    shape: tuple[int, ...] = () if sample is None or sample.tokens else sample.shape
    return len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2]


def _products(made: Any) -> float | None:
    """Weights times the places that they are applied at: ids of a sequence, patches of 16 x 16 of an image."""
    weights = sum(parameter.numel() for parameter in made.model.parameters())
    if made.sample is None:
        return None
    tokens = made.sample.shape[0] if made.sample.tokens else 1
    places = made.sample.shape[1] * made.sample.shape[2] / 16**2 if _image(made.sample) else tokens
    return float(weights * places)


def _inspect(case: Case) -> Brought:
    from torch.nn.modules.batchnorm import _BatchNorm

    from bench.user import check_picklable, workload

    made: Any = workload(case)
    check_picklable(made, where=f"model {clip(case.model)!r}")
    return Brought(
        dataset_len=len(made.dataset) if made.dataset is not None else None,
        has_dataset=made.dataset is not None,
        has_sample=made.sample is not None,
        image=_image(made.sample),
        tokens=made.sample is not None and made.sample.tokens,
        products=_products(made),
        batch_norm=any(isinstance(layer, _BatchNorm) for layer in made.model.modules()),
    )
