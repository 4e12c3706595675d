"""What goes wrong for a reason the user can act on: one line each, never a traceback."""


class BenchError(Exception):
    """An error whose text says what, where, what is allowed and what to do."""

    exit_code = 1


class UsageError(BenchError):
    """Bad input: a suite, an option, a results folder. The command line exits with 2."""

    exit_code = 2
