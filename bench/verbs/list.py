"""`scalemark list`: what there is to choose from."""

from typing import Annotated

import typer

from bench.verbs import _options as o

AXES = "axes"


def list_(
    kind: Annotated[
        str | None, typer.Argument(help="axes, strategies, models, data, suites, ...: all without it.")
    ] = None,
    json: o.Json = False,
) -> None:
    """List axes, strategies, models, data, suites, samplers, figures, exporters, importers, launchers and verbs."""
    from bench import plugins
    from bench.case import FIELDS
    from bench.errors import UsageError

    known = {AXES: "settings of a cell: --set AXIS=V1,V2", **plugins.KINDS}
    if kind is not None and kind not in known:
        raise UsageError(plugins.unknown("list", kind, known))
    names = {name: FIELDS if name == AXES else plugins.names(name) for name in ([kind] if kind else known)}
    if json:
        import msgspec

        typer.echo(msgspec.json.encode(names).decode())
        return
    for name, entries in names.items():
        typer.echo(f"{name}: {known[name]}")
        width = max(16, *map(len, entries))
        for entry in entries:
            typer.echo(f"  {entry:<{width}} {_summary(name, entry)}".rstrip())


def _axis(name: str) -> str:
    """What an axis may be, and its default, from the schema of a case."""
    from bench import settings

    default = settings.default(name)
    if isinstance(default, bool):
        default = str(default).lower()
    shown = "none" if default is None else "empty" if default == {} else default
    return f"{', '.join(settings.words(name))} [{shown}]"


def _summary(kind: str, name: str) -> str:
    """One line about an entry, from the plug-in itself."""
    from bench import plugins, suite

    if kind == AXES:
        return _axis(name)
    if kind == "suites":
        return suite.load(name).title
    plugin = plugins.load(kind, name)
    text = getattr(plugin, "summary", None) or getattr(plugin, "question", None) or plugin.__doc__ or ""
    options = getattr(plugin, "options", None)
    told = f" [{', '.join(f'{k}={v}' for k, v in options.items())}]" if options else ""
    return text.strip().splitlines()[0] + told


PLUGIN = list_
