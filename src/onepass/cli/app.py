"""The command `onepass` and its subcommands."""

from __future__ import annotations

import io
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from onepass.cli.machine import machine, wall
from onepass.cli.models import bench, explain, optimize, why
from onepass.cli.zoo import zoo

app = typer.Typer(
    name="onepass",
    help="Makes neural networks fast by operator fusion, and explains every decision.\n\n"
    "Start with: onepass optimize zoo:resnet50",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"onepass {version('onepass')}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Makes neural networks fast by operator fusion, and explains every decision.

    Start with: `onepass optimize zoo:resnet50`
    """


for command in (optimize, explain, why, machine, wall, bench):
    app.command()(command)
app.add_typer(zoo, name="zoo")


def main() -> None:
    """Runs the command line of this process; what goes to a closed stream is lost."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, io.StringIO())
    app()
