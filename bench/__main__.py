"""`python -m bench` and the `scalemark` command."""


def main() -> None:
    """Hand over to the command line; nothing is imported before it is needed."""
    try:
        from bench.cli import run

        run()
    except KeyboardInterrupt:  # during imports
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
