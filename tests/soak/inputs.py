"""Inputs that nobody would give on purpose: suites, words of the command line and study files, drawn from a seed."""

import contextlib
import copy
import io
import json
import random
import sys
import traceback
from typing import NamedTuple

from bench import cli, plugins
from bench.case import FIELDS
from bench.suite import TABLES

NAMES = (
    "<script>alert(1)</script>",
    "\x1b[31mred\x1b[0m",
    "../../etc/passwd",
    "x" * 10_000,
    "a\nb",
    "\u202e",
    "",
    " ",
    "'\"",
    "%s{}",
)
VALUES = (
    None, True, False, 0, 1, -1, 2, 3, 7, 10**6, 2**63 - 1, -(2**63), 0.0, -0.0, 0.5, 1e-300, 1e300, -1.5,
    "auto", "none", "ddp", "paced", "ok", "failed", [], [1], [1, 2], ["a"], {}, {"a": 1}, *NAMES,
)  # fmt: skip

LIKELY = {
    "strategy": ("single", "ddp", "dp", "fsdp"), "ranks": (1, 2, "auto"), "nodes": (1, 2), "batch": (1, 2, 8, "auto"),
    "scaling": ("weak", "strong"), "data": ("synthetic", "device", "photos", "auto"), "num_workers": (0, 1, 2, "auto"),
    "sync_bn": (True, False), "steps": (1, 20, 60), "timeout_s": (0.5, 60, 600.0), "precision": ("fp32", "bf16", "fp16"),
    "pin_memory": (True, False), "prefetch_factor": (1, 4), "grad_accumulation": (1, 2), "link": ("1gbit", "100mbit,1ms"),
}  # fmt: skip


class Answer(NamedTuple):
    """What the command line made of its words; `fault`: a traceback, or words of one, which a user must never see."""

    code: int
    text: str
    fault: str | None


def call(*words: str) -> Answer:
    """Run scalemark WORDS in this process, as `python -m bench WORDS` would."""
    out = io.StringIO()
    before, sys.argv = sys.argv, ["scalemark", *words]
    found, code = None, 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            cli.run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        found = traceback.format_exc()
    finally:
        sys.argv = before
    text = out.getvalue()
    if found is None and (cli.FAULT in text or "Traceback" in text):
        found = text
    return Answer(code, text, found)


def toml(value: object) -> str:
    """A value as TOML; what TOML has not (null) as a word."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if value is None:
        return '"none"'
    if isinstance(value, str):  # DEL is the one character that JSON leaves as it is and TOML does not take
        return json.dumps(value).replace("\x7f", "\\u007f")
    return json.dumps(value)


def suite_text(rng: random.Random) -> str:
    """A suite that is nearly right: tables and fields mostly known, values of any kind."""
    lines = []
    for table in rng.sample(["case", "matrix", "base"], rng.randint(1, 3)):
        lines.append(f"[{table}]")
        fields = [field for field in FIELDS if field != "model"] + [
            "model_args.width",
            "data_args.x",
            "modle",
        ]
        for field in rng.sample(fields if rng.random() < 0.4 else list(LIKELY), rng.randint(0, 4)):
            levels = [_likely(rng, field) for _ in range(rng.randint(0, 3))]
            value = levels if table == "matrix" else _likely(rng, field)
            lines.append(f"{field if rng.random() < 0.9 else json.dumps(field + '!')} = {toml(value)}")
    if rng.random() < 0.3:
        lines += ["[[exclude]]", f"{rng.choice(FIELDS)} = {toml(_value(rng))}"]
    if rng.random() < 0.1:
        lines.insert(0, f"{rng.choice(TABLES)} = {toml(_value(rng))}")
    return (
        damaged(rng, "\n".join(lines).encode()).decode(errors="replace")
        if rng.random() < 0.2
        else "\n".join(lines)
    )


def command_words(rng: random.Random, study: str, suite: str) -> list[str]:
    """Words that start nothing: plan, list, scaling, compare, and `run` and `report` where they are wrong."""
    known = ["single", "ddp", "loader", suite, study, "results/none", *NAMES[:6]]
    options = [
        "--set",
        "--nproc",
        "--nodes",
        "--budget",
        "--devices",
        "--json",
        "--quick",
        "--link",
        "--at",
        "-o",
        "--resume",
        "--bogus",
    ]
    verb = rng.choice(["plan", "plan", "list", "scaling", "compare", "export", "plann", "slurm", "k8s"])
    words = [verb, *(rng.choice(known) for _ in range(rng.randint(0, 3)))]
    for _ in range(rng.randint(0, 3)):
        words += [rng.choice(options), *([_word(rng)] if rng.random() < 0.8 else [])]
    return words


def _likely(rng: random.Random, field: str) -> object:
    """A value that the field may have, mostly; else any."""
    return rng.choice(LIKELY[field]) if field in LIKELY and rng.random() < 0.93 else _value(rng)


def _word(rng: random.Random) -> str:
    field = rng.choice([name for name in FIELDS if name != "model"])
    return rng.choice(
        [f"{field}={_value(rng)}", f"{field}=1,2", str(_value(rng)), rng.choice(plugins.names("strategies"))]
    )


def _value(rng: random.Random) -> object:
    return copy.deepcopy(rng.choice(VALUES))


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The same bytes, cut, or with some of them changed, gone or doubled."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not made:
            break
        at = rng.randrange(len(made))
        end = min(len(made), at + rng.randint(1, 40))
        how = rng.randrange(5)
        if how == 0:
            made[at] = rng.randrange(256)
        elif how == 1:
            del made[at:end]
        elif how == 2:
            made[at:at] = made[at:end]
        elif how == 3:
            made[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            del made[at:]
    return bytes(made)


def altered(rng: random.Random, line: str) -> str:
    """A JSON text with one to three of its values replaced, wherever they stand; it stays JSON."""
    data = json.loads(line)
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice(list(_places(data)))
        value = _value(rng)
        same = [one for one in VALUES if type(one) is type(holder[key])]
        holder[key] = copy.deepcopy(rng.choice(same)) if same and rng.random() < 0.7 else value
    return json.dumps(data)


def _places(data: object):
    """Every place of a JSON value: its holder, and the key or index there."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(items):
        yield data, key
        yield from _places(value)
