"""`onepass optimize`: the main job, from a model to a verdict, a report, a picture and a ledger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

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
from onepass.compare.fusion import FusionRun, run_fusion
from onepass.compare.kernels import check_kernels, checks_json, checks_verdict
from onepass.core.errors import UserError
from onepass.core.files import write_text
from onepass.frontends.onnx_import import import_onnx
from onepass.report.flow_svg import before_after_svg
from onepass.report.ledger import ledger_jsonl
from onepass.report.outcome import outcome_json
from onepass.report.summary import summary


@reported
def optimize(
    model: ModelArgument,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", show_default="onepass-out/NAME",
                     help="Folder for the results; files of the same name in it are replaced."),
    ] = None,
    threads: ThreadsOption = None,
    shape: ShapeOption = None,
    fuse: FuseOption = "auto",
    exact: ExactOption = False,
    check: Annotated[
        bool, typer.Option("--check", help="Also judge each kernel alone, by what it read and wrote.")
    ] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Fuse a model, prove that it is equal, and measure what that gains.

    Compiles the model twice, op by op and fused, runs both in turns on the same inputs, and writes
    `report.html` (open it in a browser), `before_after.svg` and `plan.jsonl` (every decision).

    Example: `onepass optimize zoo:resnet50 --shape input=16x3x224x224 -o out`
    """
    with progress() as step:
        step("reading the model")
        opened = open_model(model, shape)
        folder = output or Path("onepass-out") / opened.name
        _check_folder(folder)
        step("measuring the machine, unless that was done")
        setup = make_setup(opened, threads, fuse, exact)
        run = run_fusion(opened.label, opened.loaded, setup, opened.shapes, step)
        checks = check_kernels(import_onnx(opened.loaded, opened.shapes), setup, run.inputs) if check else ()
        step("writing the report")
        files = _write(run, folder)
    if as_json:
        show_json(outcome_json(run.outcome) | ({"checks": checks_json(checks)} if check else {}))
        return
    screen = console()
    screen.print(summary(run.outcome))
    for line in checks_verdict(checks) if check else ():
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    for note in run.fused.cache_notes(("corrupt", "unwritable")):
        screen.print(f"Code cache: {note}.", markup=False, highlight=False)
    screen.print("Written: " + ", ".join(map(str, files)), markup=False, highlight=False, soft_wrap=True)


def _check_folder(folder: Path) -> None:
    """Fails before the work rather than after it."""
    why = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
    if why or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            "the results cannot be written", where=str(folder), why=why or "the folder is read-only",
            remedy="name another folder with -o",
        )  # fmt: skip


def _write(run: FusionRun, folder: Path) -> list[Path]:
    before, after = run.unfused.plan, run.fused.plan
    texts = {
        "report.html": run.html(),
        "before_after.svg": before_after_svg(before, after),
        "plan.jsonl": ledger_jsonl(after),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]
