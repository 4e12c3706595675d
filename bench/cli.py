"""The command line: one file a verb in verbs/, errors in one line, exit codes that scripts can rely on.

0 fine; 1 some cells failed, or are slower; 2 bad input or usage; 3 not comparable; 4 no cell gave a result; 5 undecided;
70 a fault of scalemark itself; 74 an error of the system; 130 interrupted.
"""

import errno
import importlib
import os
import re
import sys

import typer

from bench import __version__, plugins
from bench.errors import BenchError, UsageError

FIRST = ("plan", "run", "report", "compare", "scaling", "doctor", "list")  # the order people meet them in

FAULT = "a fault of scalemark itself"
SYSTEM = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
)  # no fault of the input
SYSTEM_CODE = 74  # EX_IOERR
FAULT_CODE = 70  # EX_SOFTWARE of sysexits.h; never 1, which compare and ab mean as "slower"

app = typer.Typer(
    name="scalemark",
    help="How your PyTorch training scales, and why. Start with: scalemark doctor; scalemark run default",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scalemark {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


for verb in sorted(plugins.names("verbs"), key=lambda name: (name not in FIRST, (*FIRST, name).index(name))):
    app.command(verb)(importlib.import_module(f"bench.verbs.{verb}").PLUGIN)


def run() -> None:
    """Run the command line and exit. Set SCALEMARK_DEBUG=1 to see the traceback of an error."""
    try:
        _refuse_local_rank(sys.argv[1:])
        app(standalone_mode=True)
    except BenchError as error:
        _fail(str(error), error.exit_code, error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except KeyboardInterrupt:
        _fail("interrupted", 130, None)
    except OSError as error:
        where = f"{plugins.clip(str(error.filename), 200)}: " if error.filename else ""
        code = SYSTEM_CODE if error.errno in SYSTEM else UsageError.exit_code
        _fail(f"{where}{error.strerror or error}", code, error)
    except Exception as error:  # noqa: BLE001 - what nobody has thought of is told in one line, too
        text = plugins.clip(" ".join(str(error).split()), 200)
        _fail(f"{FAULT}: {type(error).__name__}: {text}; SCALEMARK_DEBUG=1 shows where", FAULT_CODE, error)


def _refuse_local_rank(words: list[str]) -> None:
    """Raise UsageError for the argument that torch.distributed.launch gives to every rank it starts."""
    for word in words:
        if re.match(r"--local[-_]rank(=|$)", word):
            raise UsageError(
                f"{word}: torch.distributed.launch gives this to every rank it starts, and scalemark starts ranks"
                " itself: run it once, without a launcher"
            )


def _fail(line: str, code: int, error: BaseException | None) -> None:
    if error is not None and os.environ.get("SCALEMARK_DEBUG"):
        raise error
    print(f"scalemark: {plugins.clip(line, 2000)}", file=sys.stderr)
    sys.exit(code)
