"""`python -m bench` and the `scalemark` command."""


def main() -> None:
    """Hand over to the command line; nothing is imported before it is needed."""
    from bench.cli import run

    run()


if __name__ == "__main__":
    main()
