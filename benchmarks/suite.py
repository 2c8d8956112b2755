"""The suite: onepass, fused and unfused, against ONNX Runtime, OpenVINO and torch.compile, all in float32.

Run: make bench, or .venv/bin/python benchmarks/suite.py [--only MODEL] [--threads N] [--rounds N]. All take
turns on the same input; times are minima in milliseconds. `ratio` is the best peer over onepass. `limit_ms`
is what the measured roofs of the machine allow onepass's own kernels at best: summed over them, the
operations planned at the FMA peak, or the bytes read and written once at the bandwidth of the level that
serves them, whichever takes longer. A whole run writes `results.json`, its picture and a section of
`docs/measured.md`.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import onnx

from onepass.compare.race import Entrant, Race, run_race
from onepass.compare.setup import Setup, set_up
from onepass.compare.timing import LEAST_ROUNDS
from onepass.core.files import write_text
from onepass.core.settings import FLUSH, Settings
from onepass.core.tensor import Shape
from onepass.cost.machine import STREAMED, Machine
from onepass.frontends.onnx_model import load_onnx
from onepass.report.terminal import Terminal, table
from onepass.zoo import catalog
from suite_svg import PEERS, suite_svg

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from centerface import load_with_free_size
from published_models import FetchError, fetch, user_cache

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
PICTURE, DOCUMENT = ROOT / "docs" / "suite.svg", ROOT / "docs" / "measured.md"
BEGIN, END = "<!-- benchmarks/suite.py writes from here -->", "<!-- to here -->"
WIDTH = 120  # columns: the table does not fit in 80
PACKAGES = ("onepass", "llvmlite", *PEERS)
Row = dict[str, Any]
Results = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model of the zoo, or a published one, and the shape of its one input; with `flush` onepass takes
    subnormal numbers for zero, as OpenVINO always does."""

    model: str
    shape: Shape
    flush: bool = False

    def __str__(self) -> str:
        text = f"{self.model} {'x'.join(map(str, self.shape))}"
        return f"{text}, subnormals flushed" if self.flush else text


WORKLOADS = (
    Workload("resnet50", (1, 3, 224, 224)),
    Workload("resnet50", (16, 3, 224, 224)),
    Workload("mobilenet_v2", (1, 3, 224, 224)),
    Workload("convnext_tiny", (1, 3, 224, 224)),
    Workload("centerface", (1, 3, 512, 512)),
    Workload("dncnn", (1, 1, 256, 256)),
    Workload("espcn", (1, 3, 540, 960)),
    Workload("unet", (1, 3, 256, 256)),
    Workload("row_chain", (65536, 256)),
    Workload("rapidocr-detector", (1, 3, 640, 640)),
    Workload("rapidocr-detector", (1, 3, 640, 640), flush=True),
)


def open_model(name: str) -> onnx.ModelProto:
    """The model `name`; raises FetchError for a published one that no package index gives."""
    if name in catalog.ENTRIES:
        return catalog.build(name)
    path = fetch(name, user_cache())
    return load_with_free_size(path) if name == "centerface" else onnx.load(path)


def race(workload: Workload, setup: Setup, rounds: int) -> Race:
    """The workload in all ways, in turns."""
    model = open_model(workload.model)
    constants = {tensor.name for tensor in model.graph.initializer}
    if workload.flush:
        rewrites = setup.settings.rewrites | {FLUSH}
        setup = replace(setup, settings=replace(setup.settings, rewrites=rewrites))
    (given,) = (value.name for value in model.graph.input if value.name not in constants)
    return run_race(
        str(workload), load_onnx(model), setup, {given: workload.shape}, PEERS, least_rounds=rounds
    )


def row_of(found: Race) -> Row:
    """One row of the results: minima in ms, the median of each beside them; None for what did not run."""
    ours, *others = found.entrants
    ran = {entrant.name: entrant for entrant in others}

    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(1e3 * seconds, 3)

    def medians(entrants: Sequence[Entrant]) -> dict[str, float | None]:
        return {entrant.name: ms(entrant.median_s) for entrant in entrants}

    return {
        "workload": found.model,
        "threads": found.threads,
        "onepass_ms": ms(ours.min_s),
        "unfused_ms": ms(found.unfused.min_s),
        "peers": {name: ms(ran[name].min_s) if name in ran else None for name in PEERS},
        "ratio": None if found.ratio is None else round(found.ratio, 3),
        "limit_ms": ms(found.limit_s),
        "medians": medians([ours, found.unfused, *others]),
    }


def machine_of(machine: Machine, workers: int) -> dict[str, Any]:
    """What the limits follow from: the processor, its peak in GFLOP/s and its bandwidths in GB/s."""
    levels = {what: machine.roof(what, workers) for what in ("l2", "l3", "memory", STREAMED)}
    return {
        "name": machine.name,
        "isa": machine.isa,
        "cores": machine.cores,
        "peak_gflops": round(machine.peak_flops_per_s("float32", workers) / 1e9, 1),
        "gb_per_s": {level: round(value / 1e9, 1) for level, value in levels.items()},
    }


def versions() -> dict[str, str]:
    """Of Python, onepass and every peer that is installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


HEADINGS = ("onepass", "unfused", *PEERS, "ratio", "limit", "limit / onepass")


def cells(row: Row) -> list[str]:
    """A row as texts, in the order of `HEADINGS` after the workload."""
    times = (row["onepass_ms"], row["unfused_ms"], *row["peers"].values())
    ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}"
    share = f"{row['limit_ms'] / row['onepass_ms']:.0%}"
    return [row["workload"], *map(_ms, times), ratio, _ms(row["limit_ms"]), share]


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def section(results: Results) -> str:
    """What `docs/measured.md` says of the results."""
    machine, packages = results["machine"], results["versions"]
    speeds = ", ".join(f"{level} {value:g} GB/s" for level, value in machine["gb_per_s"].items())
    headings = ("milliseconds", *HEADINGS)
    lines = [
        f"Machine: {machine['name']}, {machine['cores']} cores, {machine['isa']}, "
        f"{results['rows'][0]['threads']} threads; measured roofs: {machine['peak_gflops']:g} GFLOP/s "
        f"float32 FMA, {speeds}.",
        f"{results['date']}, `{results['command']}`; "
        + ", ".join(f"{name} {number}" for name, number in packages.items()) + ".",
        "",
        "Minima of runs in turns; `ratio`: best peer over onepass; `limit`: what the roofs allow onepass's "
        "kernels at best. Medians are in `benchmarks/results.json`.",
        "",
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
        *(f"| {' | '.join(cells(row))} |" for row in results["rows"]),
        "",
        *(f"- {note}" for note in results["notes"]),
        *([""] if results["notes"] else []),
        "![Times of each workload as a multiple of its limit](suite.svg)",
    ]  # fmt: skip
    return "\n".join(lines)


def put_between_markers(document: str, text: str) -> str:
    """`document` with `text` between the markers; raises ValueError unless each is there once."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"the document needs the markers '{BEGIN}' and '{END}', once each")
    return f"{before}{begin}\n{text}\n{end}{after}"


def publish(results: Results) -> None:
    """Writes the results, their picture and their section."""
    document = put_between_markers(DOCUMENT.read_text("utf-8"), section(results))
    write_text(RESULTS, json.dumps(results, indent=1) + "\n")
    write_text(PICTURE, suite_svg(results))
    write_text(DOCUMENT, document)


def main(arguments: Sequence[str]) -> int:
    """Runs the suite; 1 when no workload ran."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = list(dict.fromkeys(workload.model for workload in WORKLOADS))
    parser.add_argument("--only", choices=names, help="run this model alone, and write nothing")
    parser.add_argument("--threads", type=int, help="default: all that this process may use")
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help="at least this many (%(default)s)")
    options = parser.parse_args(arguments)
    setup, show = set_up(Settings(threads=options.threads)), Terminal(width=WIDTH)
    rows, notes = [], []
    for workload in WORKLOADS:
        if options.only in (None, workload.model):
            show.say(f"{workload} …")
            try:
                found = race(workload, setup, options.rounds)
            except FetchError as error:
                notes.append(f"{workload} was skipped: {error}.")
                continue
            rows.append(row_of(found))
            notes += [f"{workload}: {name} did not run: {reason}." for name, reason in found.missing.items()]
    show.print(table(["milliseconds"], HEADINGS, map(cells, rows)))
    show.say(*notes)
    if rows and options.only is None:
        command = shlex.join(["python", "benchmarks/suite.py", *arguments])
        publish({
            "machine": machine_of(setup.machine, setup.workers), "date": found.date[:10], "command": command,
            "versions": versions(), "rows": rows, "notes": notes,
        })  # fmt: skip
        show.say(f"Written: {RESULTS}, {PICTURE}, {DOCUMENT}")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
