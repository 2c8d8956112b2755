"""The commands about one model: `onepass optimize`, `explain`, `why` and `bench`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from onepass.cli.common import (
    AllowOption,
    DtypeOption,
    ExactOption,
    FuseOption,
    JsonOption,
    ModelArgument,
    ShapeOption,
    TargetOption,
    ThreadsOption,
    TuneOption,
    WithoutOption,
    open_model,
    progress,
    reported,
    screen,
    show_json,
)
from onepass.compare.explanation import Explanation, GpuExplanation, explain_for_gpu
from onepass.compare.explanation import explain as explain_model
from onepass.compare.fusion import FusionRun, run_fusion
from onepass.compare.kernels import check_kernels, checks_json, checks_verdict
from onepass.compare.race import run_race
from onepass.compare.setup import GpuSetup, Setup
from onepass.core.errors import UserError
from onepass.core.files import write_text
from onepass.cost.gpu import machine
from onepass.frontends.onnx_import import import_onnx
from onepass.fuse.plan import Decision
from onepass.gpu_pipeline import GpuCompiled
from onepass.pipeline import Compiled
from onepass.report.diagnosis import (
    diagnose,
    diagnosis_json,
    diagnosis_table,
    error_sentence,
    node_json,
    node_table,
)
from onepass.report.flow_svg import before_after_svg
from onepass.report.gpu import gpu_node_json, gpu_node_table, kernel_rows, kernels_table
from onepass.report.ledger import decision_json, ledger_jsonl
from onepass.report.ledger import why as why_edge
from onepass.report.outcome import Json, outcome_json, summary
from onepass.report.terminal import table
from onepass.report.tuning import tuning_json, tuning_sentence
from onepass.report.units import bytes_text, seconds_text


@reported
def optimize(
    model: ModelArgument,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", show_default="onepass-out/NAME",
                     help="Folder for the results; files of the same name in it are replaced."),
    ] = None,
    target: TargetOption = None,
    dtype: DtypeOption = None,
    threads: ThreadsOption = None,
    shape: ShapeOption = None,
    fuse: FuseOption = "auto",
    exact: ExactOption = False,
    without: WithoutOption = None,
    allow: AllowOption = None,
    tune: TuneOption = False,
    check: Annotated[
        bool, typer.Option("--check", help="Also judge each kernel alone, by what it read and wrote.")
    ] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Fuse a model, prove that it is equal, and measure what that gains.

    Compiles the model twice, op by op and fused, runs both in turns on the same inputs, and writes
    `report.html` (open it in a browser), `before_after.svg` and `plan.jsonl` (every decision).

    With `--target` the files are one readable Triton source a kernel, in `kernels`, `before_after.svg` and
    `plan.jsonl`; where that GPU is not, all is done but run, and predicted times are compared.

    Example: `onepass optimize zoo:resnet50 --shape input=16x3x224x224 -o out`
    """
    with progress() as step:
        opened = open_model(
            step, model, shape, threads, fuse, exact, without, allow, tune, target, dtype
        )
        setup, folder = opened.setup, output or Path("onepass-out") / opened.name
        _check_folder(folder)
        run = run_fusion(opened.label, opened.loaded, setup, opened.shapes, step)
        check = check and run.traces is not None
        checks = check_kernels(import_onnx(opened.loaded, opened.shapes), setup, run.inputs) if check else ()
        step("writing the report")
        after = run.fused.plan
        written = _write(run, folder)
    if as_json:
        more: Json = {"checks": checks_json(checks)} if check else {}
        more |= {"tuning": tuning_json(after.tuned)} if tune else {}
        if isinstance(run.fused, GpuCompiled):
            more["kernels"] = list(map(asdict, kernel_rows(run.fused)))
        show_json(outcome_json(run.outcome) | more)
        return
    show = screen()
    show.print(summary(run.outcome))
    show.say(*(checks_verdict(checks) if check else ()))
    show.say(*([tuning_sentence(after.tuned)] if tune else []))
    if isinstance(run.fused, Compiled):
        show.say(*(f"Code cache: {note}." for note in run.fused.cache_notes(("corrupt", "unwritable"))))
    show.say("Written: " + ", ".join(written))


def _write(run: FusionRun, folder: Path) -> list[str]:
    """The files of `optimize`; what was written, kernels together."""
    texts = {
        folder / "before_after.svg": before_after_svg(run.unfused.plan, run.fused.plan),
        folder / "plan.jsonl": ledger_jsonl(run.fused.plan),
    }
    if run.traces is not None:
        texts = {folder / "report.html": run.html()} | texts
    written = list(map(str, texts))
    if isinstance(run.fused, GpuCompiled):
        pairs = zip(run.fused.names, run.fused.kernels, strict=True)
        texts |= {folder / "kernels" / f"{name}.py": kernel.built.kernel.source for name, kernel in pairs}
        written.append(f"{len(run.fused.kernels)} kernels in {folder / 'kernels'}")
    for path, text in texts.items():
        write_text(path, text)
    return written


def _check_folder(folder: Path) -> None:
    """Fails before the work rather than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            "the results cannot be written", where=str(folder), why=error.strerror or str(error),
            remedy="name another folder with -o",
        ) from error  # fmt: skip


@reported
def explain(
    model: ModelArgument,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="Only this node, in full.")] = None,
    target: TargetOption = None,
    dtype: DtypeOption = None,
    threads: ThreadsOption = None,
    shape: ShapeOption = None,
    fuse: FuseOption = "auto",
    exact: ExactOption = False,
    without: WithoutOption = None,
    allow: AllowOption = None,
    tune: TuneOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what holds each operator up, and where each value lives and why.

    Runs the model op by op: for each op its operations, the bytes it must move and does move, what bounds
    it (computing, a memory level, or launching), predicted and measured time, and what share that is of
    the measured peak and of the bandwidth of the level that bounds it; and what subnormal numbers cost,
    where there are many. Then the ledger: one decision for each edge.

    With `--target` nothing is run: every kernel is compiled for the GPU, and shown with its registers,
    spilled bytes, shared memory, occupancy, predicted bytes and time, and what was changed to make it fit.

    Example: `onepass explain zoo:vector_add`, or `onepass explain zoo:resnet50 --target cuda:sm_90 --dtype
    float16`
    """
    with progress() as step:
        opened = open_model(
            step, model, shape, threads, fuse, exact, without, allow, tune, target, dtype
        )
        found: Explanation | GpuExplanation
        if isinstance(opened.setup, GpuSetup):
            found = explain_for_gpu(opened.loaded, opened.setup, opened.shapes)
        else:
            step("compiling and measuring")
            found = explain_model(opened.loaded, opened.setup, opened.shapes)
    if isinstance(found, GpuExplanation):
        _show_gpu(opened.label, dtype, found, node, as_json)
        return
    if as_json:
        ledger = [decision_json(decision) for decision in found.decisions]
        data = diagnosis_json(found.rows) | {"decisions": ledger}
        data["subnormals"] = asdict(found.subnormals) if found.subnormals else None
        show_json(node_json(found.plan, found.rows, node) if node else {"model": opened.label, **data})
        return
    show = screen()
    if node:
        show.show(node_table(found.plan, found.rows, node))
        return
    show.show(diagnosis_table(found.rows))
    show.say(error_sentence(found.rows), *([found.subnormals.sentence()] if found.subnormals else []), "")
    show.show(_ledger(found.decisions))


def _ledger(decisions: Iterable[Decision]) -> Table:
    cells = (
        (d.home, d.producer or "model input", d.consumer or "model output", d.detail,
         bytes_text(sum(d.saved_bytes.values())) if d.saved_bytes else "", seconds_text(d.seconds))
        for d in decisions
    )  # fmt: skip
    return table(["home", "from", "to", "why"], ["saves", "predicted"], cells)


def _show_gpu(
    label: str, dtype: str | None, found: GpuExplanation, node: str | None, as_json: bool
) -> None:
    """What `explain` shows of a model compiled for a GPU."""
    show = screen()
    if as_json and node:
        show_json(gpu_node_json(found.compiled, found.rows, node))
    elif as_json:
        gpu = found.compiled.gpu
        show_json({
            "model": label, "target": gpu.name, "dtype": dtype, "kernels": list(map(asdict, found.rows)),
            **diagnosis_json(diagnose(found.plan, None, machine(gpu), 1)),
            "decisions": list(map(decision_json, found.decisions)), "subnormals": None,
            "machine": asdict(gpu), "compile_s": found.compiled.compile_s,
        })
    elif node:
        show.show(gpu_node_table(found.compiled, found.rows, node))
    else:
        show.show(kernels_table(found.rows))
        show.say(*found.sentences(), "")
        show.show(_ledger(found.decisions))


@reported
def why(
    model: ModelArgument,
    a: Annotated[str, typer.Argument(metavar="A", help="A node or value of the model.")],
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="The node or value at the other end; all if left out.")
    ] = None,
    target: TargetOption = None,
    dtype: DtypeOption = None,
    threads: ThreadsOption = None,
    shape: ShapeOption = None,
    fuse: FuseOption = "auto",
    exact: ExactOption = False,
    without: WithoutOption = None,
    allow: AllowOption = None,
    tune: TuneOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say in a sentence why the edge between two nodes, or each edge of one node, is fused or is not.

    With `--target` it also tells how the kernels at the edge fitted the GPU, tile by tile.

    Example: `onepass why zoo:resnet50 /conv1/Conv /bn1/BatchNormalization`
    """
    with progress() as step:
        opened = open_model(
            step, model, shape, threads, fuse, exact, without, allow, tune, target, dtype
        )
        step("planning the model")
        plan = opened.setup.compile(import_onnx(opened.loaded, opened.shapes)).plan
    text = why_edge(plan, a, b)
    if as_json:
        found = [decision_json(d) for d in plan.decisions if {a, b or a} <= d.names]
        show_json({"model": opened.label, "a": a, "b": b, "answer": text, "decisions": found})
        return
    screen().say(text)


@reported
def bench(
    model: ModelArgument,
    against: Annotated[
        str, typer.Option(metavar="NAME,...", help="Peers: onnxruntime, openvino (float32), torch (compile).")
    ] = "onnxruntime,openvino,torch",
    threads: ThreadsOption = None,
    shape: ShapeOption = None,
    fuse: FuseOption = "auto",
    exact: ExactOption = False,
    without: WithoutOption = None,
    allow: AllowOption = None,
    tune: TuneOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a model here, fused and not, and on other runtimes, in turns, on the same inputs; say who wins.

    Peers are not part of onepass; get them with `pip install 'onepass[peers]'`, and a C++ compiler for
    torch. Each gets the same number of threads.

    Example: `onepass bench zoo:mobilenet_v2 --against onnxruntime`
    """
    with progress() as step:
        opened = open_model(step, model, shape, threads, fuse, exact, without, allow, tune)
        assert isinstance(opened.setup, Setup), "it has no target"
        peers = [name.strip() for name in against.split(",") if name.strip()]
        race = run_race(opened.label, opened.loaded, opened.setup, opened.shapes, peers, step)
    if as_json:
        tuned = {"tuning": tuning_json(race.tuned)} if tune else {}
        show_json({**asdict(race), "verdict": race.verdict()} | tuned)
        return
    ours, *others = race.entrants
    rows = [(ours.label, seconds_text(ours.min_s), seconds_text(ours.median_s), "", "")]
    rows += [
        (each.label, seconds_text(each.min_s), seconds_text(each.median_s),
         f"{each.min_s / ours.min_s:.2f}x as fast", f"{each.relative_l2:.1e}")
        for each in (race.unfused, *others)
    ]  # fmt: skip
    title = f"{race.model} on {race.machine}, {race.threads} threads"
    show = screen()
    show.show(table([""], ["minimum", "median", "onepass is", "differs by"], rows, title))
    show.say(*(f"{name} did not run: {reason}." for name, reason in race.missing.items()))
    show.say(f"The measured roofs allow these kernels {seconds_text(race.limit_s)} at best.")
    show.say(*([tuning_sentence(race.tuned)] if tune else []))
    show.print(Text(race.verdict(), style="bold"))
