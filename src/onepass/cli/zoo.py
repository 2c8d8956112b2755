"""`onepass zoo`: the built-in models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onepass.cli.common import JsonOption, reported, screen, show_json
from onepass.core.files import write_whole
from onepass.report.terminal import table
from onepass.zoo import catalog

zoo = typer.Typer(
    help="The built-in models: real architectures with seeded random weights, built on the spot.",
    no_args_is_help=True,
)


@zoo.command("list")
@reported
def list_models(as_json: JsonOption = False) -> None:
    """List the built-in models. Use one as zoo:NAME wherever MODEL is asked for.

    Example: `onepass zoo list`
    """
    rows = [(name, entry.about, entry.shapes) for name, entry in catalog.ENTRIES.items()]
    if as_json:
        show_json({"models": [{"name": n, "about": about, "shapes": shapes} for n, about, shapes in rows]})
        return
    cells = (
        (name, about, ", ".join(f"{key} {'x'.join(map(str, shape))}" for key, shape in shapes.items()))
        for name, about, shapes in rows
    )
    screen().print(table(["name", "what it is", "inputs"], [], cells))


@zoo.command()
@reported
def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `onepass zoo list`.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The ONNX file to write.")],
    as_json: JsonOption = False,
) -> None:
    """Write a built-in model to an ONNX file, to use it elsewhere.

    Example: `onepass zoo export mobilenet_v2 mobilenet_v2.onnx`
    """
    data = catalog.build(name).SerializeToString()
    write_whole(file, lambda target: target.write(data))
    if as_json:
        show_json({"name": name, "file": str(file), "bytes": len(data)})
        return
    screen().say(f"{file}: {len(data):,} bytes")
