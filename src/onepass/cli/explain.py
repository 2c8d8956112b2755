"""`onepass explain` and `onepass why`: the diagnosis of each operator, and single decisions."""

from __future__ import annotations

from collections.abc import Sequence
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
from onepass.compare.explanation import explain as explain_model
from onepass.frontends.onnx_import import import_onnx
from onepass.fuse.plan import Decision
from onepass.report.diagnosis import diagnosis_json, diagnosis_table, model_error, node_json, node_table
from onepass.report.ledger import decision_json
from onepass.report.ledger import why as why_edge
from onepass.report.units import bytes_text, seconds_text, share_text


@reported
def explain(
    model: ModelArgument,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="Only this node, in full.")] = None,
    threads: ThreadsOption = None,
    shape: ShapeOption = None,
    fuse: FuseOption = "auto",
    exact: ExactOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what holds each operator up, and where each value lives and why.

    Runs the model op by op: for each op its operations, the bytes it must move and does move, what bounds
    it (computing, a memory level, or launching), predicted and measured time. Then the ledger: one
    decision for each edge.

    Example: `onepass explain zoo:vector_add`
    """
    with progress() as step:
        step("reading the model")
        opened = open_model(model, shape)
        setup = make_setup(opened, threads, fuse, exact)
        step("compiling and measuring")
        found = explain_model(opened.loaded, setup, opened.shapes, measured=True)
    if as_json:
        ledger = [decision_json(decision) for decision in found.decisions]
        data = diagnosis_json(found.rows) | {"decisions": ledger}
        show_json(node_json(found.plan, found.rows, node) if node else {"model": opened.label, **data})
        return
    screen = console()
    if node:
        screen.print(node_table(found.plan, found.rows, node))
        return
    screen.print(diagnosis_table(found.rows))
    error = model_error(found.rows)
    if error is not None:
        screen.print(
            f"Predicted against measured seconds: median error {share_text(error.median)} over "
            f"{error.kernels} kernels, worst {share_text(error.worst)} at {error.worst_kernel}.",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    screen.print(_ledger(found.decisions))


def _ledger(decisions: Sequence[Decision]) -> Table:
    table = Table("home", "from", "to", "saves", "predicted", "why")
    for d in decisions:
        saved = sum(d.saved_bytes.values())
        table.add_row(
            d.home, Text(d.producer or "model input"), Text(d.consumer or "model output"),
            bytes_text(saved) if saved else "", seconds_text(d.seconds), Text(d.detail),
        )  # fmt: skip
    return table


@reported
def why(
    model: ModelArgument,
    a: Annotated[str, typer.Argument(metavar="A", help="A node or value of the model.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The node or value at the other end.")],
    threads: ThreadsOption = None,
    shape: ShapeOption = None,
    fuse: FuseOption = "auto",
    exact: ExactOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say in a sentence why the edge between two nodes is fused, or is not.

    Example: `onepass why zoo:resnet50 /conv1/Conv /relu/Relu`
    """
    with progress() as step:
        step("reading and planning the model")
        opened = open_model(model, shape)
        setup = make_setup(opened, threads, fuse, exact)
        plan = setup.compile(import_onnx(opened.loaded, opened.shapes)).plan
    text = why_edge(plan, a, b)
    if as_json:
        found = [decision_json(d) for d in plan.decisions if {a, b} <= {d.producer, d.consumer, d.value}]
        show_json({"model": opened.label, "a": a, "b": b, "answer": text, "decisions": found})
        return
    print(text)
