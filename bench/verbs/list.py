"""`scalemark list`: what there is to choose from."""

from typing import Annotated

import typer

from bench.verbs import _options as o


def list_(
    kind: Annotated[
        str | None, typer.Argument(help="strategies, models, data, suites, ...: all without it.")
    ] = None,
    json: o.Json = False,
) -> None:
    """List strategies, models, data, suites, samplers, figures and verbs."""
    from bench import plugins
    from bench.errors import UsageError

    if kind is not None and kind not in plugins.KINDS:
        raise UsageError(plugins.unknown("list", kind, plugins.KINDS))
    kinds = [kind] if kind else [name for name in plugins.KINDS if plugins.names(name)]
    if json:
        import msgspec

        typer.echo(msgspec.json.encode({name: plugins.names(name) for name in kinds}).decode())
        return
    for name in kinds:
        typer.echo(f"{name}: {plugins.KINDS[name]}")
        for entry in plugins.names(name):
            typer.echo(f"  {entry:<14} {_summary(name, entry)}".rstrip())


def _summary(kind: str, name: str) -> str:
    """One line about an entry, from the plug-in itself."""
    from bench import plugins, suite

    if kind == "suites":
        return suite.load(name).title
    plugin = plugins.load(kind, name)
    text = getattr(plugin, "summary", None) or getattr(plugin, "question", None) or plugin.__doc__ or ""
    options = getattr(plugin, "options", None)
    told = f" [{', '.join(f'{k}={v}' for k, v in options.items())}]" if options else ""
    return text.strip().splitlines()[0] + told


PLUGIN = list_
