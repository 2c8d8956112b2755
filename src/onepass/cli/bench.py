"""`onepass bench`: the same model and inputs on other runtimes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from onepass.cli.common import (
    ExactOption,
    FuseOption,
    JsonOption,
    ModelArgument,
    ShapeOption,
    ThreadsOption,
    console,
    make_setup,
    open_model,
    progress,
    reported,
    show_json,
)
from onepass.compare.race import run_race
from onepass.report.units import seconds_text


@reported
def bench(
    model: ModelArgument,
    against: Annotated[
        str, typer.Option(metavar="NAME,...", help="Peers: onnxruntime, openvino (float32), torch (eager).")
    ] = "onnxruntime,openvino,torch",
    threads: ThreadsOption = None,
    shape: ShapeOption = None,
    fuse: FuseOption = "auto",
    exact: ExactOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a model here and on other runtimes, in turns, on the same inputs; say who wins.

    Peers are not part of onepass; get them with `pip install 'onepass[peers]'`. Each gets the same
    number of threads.

    Example: `onepass bench zoo:mobilenet_v2 --against onnxruntime`
    """
    with progress() as step:
        step("reading the model")
        opened = open_model(model, shape)
        setup = make_setup(opened, threads, fuse, exact)
        peers = [name.strip() for name in against.split(",") if name.strip()]
        race = run_race(opened.label, opened.loaded, setup, opened.shapes, peers, step)
    if as_json:
        show_json({**asdict(race), "verdict": race.verdict()})
        return
    screen = console()
    table = Table(title=Text(f"{race.model} on {race.machine}, {race.threads} threads"), title_justify="left")
    table.add_column("")
    for heading in ("minimum", "median", "onepass is", "differs by"):
        table.add_column(heading, justify="right")
    ours = race.entrants[0]
    for entrant in race.entrants:
        ratio = f"{entrant.min_s / ours.min_s:.2f}x as fast" if entrant is not ours else ""
        table.add_row(
            Text(entrant.label), seconds_text(entrant.min_s), seconds_text(entrant.median_s), ratio,
            f"{entrant.relative_l2:.1e}" if entrant is not ours else "",
        )  # fmt: skip
    screen.print(table)
    for name, reason in race.missing.items():
        screen.print(f"{name} did not run: {reason}.", markup=False, highlight=False, soft_wrap=True)
    screen.print(Text(race.verdict(), style="bold"))
