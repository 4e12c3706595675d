"""The nodes by name: `--hosts n1,user@n2:2222` and host files."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bench.errors import UsageError
from bench.plugins import clip, unknown

KEYS = ("slots", "user", "port", "python", "dir")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.%-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%\w+)?", re.ASCII)
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\$-]*", re.ASCII)


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One node: its name, as the user's ssh knows it, and what is particular to it."""

    name: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None  # most ranks there
    python: str | None = None
    dir: str | None = None


def parse_hosts(text: str) -> tuple[Host, ...]:
    """`n1,user@n2:2222,[::1]` as hosts, in order. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    return _distinct([_host(word, "--hosts") for word in words if word], "--hosts")


def read_hosts(path: Path) -> tuple[Host, ...]:
    """A host file: a host a line, `n1 slots=8 user=me port=22 python=/opt/py/bin/python dir=work`, # for comments.

    Raises UsageError with the line's number.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile {path}: cannot be read ({error})") from None
    found = [_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]
    return _distinct([host for host in found if host], f"--hostfile {path}")


def fewest_slots(hosts: Iterable[Host]) -> int | None:
    """The most ranks a node that every host has room for; None where no host says."""
    return min((host.slots for host in hosts if host.slots), default=None)


def _line(line: str, where: str) -> Host | None:
    try:
        name, *settings = shlex.split(line, comments=True) or [""]
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    if not name:
        return None
    given = {}
    for word in settings:
        key, equals, value = word.partition("=")
        if key not in KEYS:
            raise UsageError(unknown(where, key, KEYS))
        if not equals or not value or key in given:
            raise UsageError(f"{where}: {clip(word)!r}: write {key}=VALUE, once")
        given[key] = value
    return _host(name, where, **given)


def _host(word: str, where: str, **given: str) -> Host:
    """One host, from `user@name:port` and settings. An address with colons is taken whole, or in brackets."""
    user, at, rest = word.rpartition("@")
    bracketed = re.fullmatch(r"\[(.+)\](?::(\d+))?", rest, re.ASCII)
    plain = re.fullmatch(r"([^:]+):(\d+)", rest, re.ASCII)
    match = bracketed or plain
    name, port = (match[1], match[2]) if match else (rest, None)
    if not NAME.fullmatch(name) or (at and not USER.fullmatch(user)):
        raise UsageError(f"{where}: {clip(word)!r} is no host; write n1, user@n1, n1:2222 or [::1]:2222")
    for key, inline in (("user", user), ("port", port)):
        if inline and key in given:
            raise UsageError(
                f"{where}: {key} stands there twice: in {clip(word)!r} and as {key}={given[key]}"
            )
    user = user or given.get("user", "")
    if user and not USER.fullmatch(user):
        raise UsageError(f"{where}: user={clip(user)!r} is no user's name")
    return Host(
        name=name,
        user=user or None,
        port=_number("port", port or given.get("port"), where, 65_535),
        slots=_number("slots", given.get("slots"), where, 4096),
        python=_path("python", given.get("python"), where),
        dir=_path("dir", given.get("dir"), where),
    )


def _number(key: str, text: str | None, where: str, most: int) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= most:
        raise UsageError(f"{where}: {key}={clip(text)}: a number from 1 to {most}")
    return int(text)


def _path(key: str, text: str | None, where: str) -> str | None:
    if text is not None and not text.isprintable():
        raise UsageError(f"{where}: {key}={clip(text)}: has characters that no path here may have")
    return text


def _distinct(hosts: list[Host], where: str) -> tuple[Host, ...]:
    """The hosts. Raises UsageError for none, and for one that is named twice."""
    if not hosts:
        raise UsageError(f"{where}: names no host; write n1,n2")
    seen = set()
    for host in hosts:
        if (host.name, host.port) in seen:
            raise UsageError(
                f"{where}: {host.name} is named twice; a host is one node, its ranks are --nproc"
            )
        seen.add((host.name, host.port))
    return tuple(hosts)
