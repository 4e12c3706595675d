"""What nobody has thought of ends in a code of its own: 1 means "slower" to a gate."""

import errno

import pytest

from bench import cli


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ZeroDivisionError("no such luck"), 70),
        (RecursionError(), 70),
        (OSError(errno.ENOSPC, "No space left on device"), 74),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 10_000), 2),
        (PermissionError(errno.EACCES, "Permission denied", "study.json"), 2),
    ],
)
def test_an_error_never_exits_like_a_slower_cell(error, code, monkeypatch, capsys):
    """A fault of our own is 70, one of the system 74, a file that cannot be used 2; each is told in one line."""

    def failing(**_):
        raise error

    monkeypatch.delenv("SCALEMARK_DEBUG", raising=False)
    monkeypatch.setattr(cli.sys, "argv", ["scalemark"])
    monkeypatch.setattr(cli, "app", failing)
    with pytest.raises(SystemExit) as ended:
        cli.run()
    assert ended.value.code == code
    told = capsys.readouterr().err
    assert told.startswith("scalemark: ") and len(told.splitlines()) == 1 and len(told) < 2100
