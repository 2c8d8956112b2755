"""onepass against other runtimes on the same inputs, in turns.

In: a loaded model, its shapes, a setup and names of peers. Out: a `Race`, with who wins in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from onepass.compare.fusion import Progress
from onepass.compare.peers import Peer, Task, check_peers, open_peer
from onepass.compare.setup import Setup, inputs_of
from onepass.compare.timing import BUDGET_S, interleave
from onepass.core.errors import UserError
from onepass.core.tensor import Shape
from onepass.core.tolerance import compare
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import OnnxModel

OURS = "onepass"
PAUSE_S = 0.02
"""Before each turn: worker threads of the runtime before spin a while for the next job."""
SAME = 0.02
"""Minimum times that differ by less are equally fast."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """One runtime: its times in seconds, and how far its results are from those of onepass."""

    name: str
    label: str
    min_s: float
    median_s: float
    relative_l2: float


@dataclass(frozen=True, slots=True)
class Race:
    """`missing` are the peers that did not run, each with the reason."""

    model: str
    machine: str
    threads: int
    date: str
    runs: int
    entrants: tuple[Entrant, ...]
    missing: Mapping[str, str]

    def verdict(self) -> str:
        """Who wins, by how much."""
        ours, *others = self.entrants
        if not others:
            return "No peer ran, so there is nothing to compare with."
        best = min(others, key=lambda entrant: entrant.min_s)
        ratio = best.min_s / ours.min_s
        if abs(ratio - 1) <= SAME:
            return f"onepass and {best.label} are equally fast."
        if ratio > 1:
            return f"onepass wins: {ratio:.2f} times as fast as {best.label}."
        return f"{best.label} wins: onepass takes {1 / ratio:.2f} times as long."


def run_race(
    name: str,
    loaded: OnnxModel,
    setup: Setup,
    shapes: Mapping[str, Shape],
    peers: Sequence[str],
    progress: Progress = lambda step: None,
    budget_s: float = BUDGET_S,
) -> Race:
    """Times the model in onepass and in each of `peers`; one that cannot run it is noted, not an error.

    Raises OptionError for an unknown peer, UserError where onepass cannot compile the model.
    """
    check_peers(peers)
    progress("compiling")
    graph = import_onnx(loaded, shapes)
    compiled = setup.compile(graph)
    inputs = inputs_of(loaded, graph)
    arrays = [inputs[name] for name in graph.inputs]
    task = Task(loaded, graph, inputs, setup.workers)
    opened: list[Peer] = [Peer(OURS, OURS, lambda: compiled.program.run(arrays))]
    missing: dict[str, str] = {}
    for peer in dict.fromkeys(peers):
        progress(f"preparing {peer}")
        try:
            opened.append(open_peer(peer, task))
        except UserError as error:
            missing[peer] = "; ".join(filter(None, (error.what, error.where, error.why, error.remedy)))
    expected = compiled.program.run(arrays)
    errors = {
        peer.name: max(compare(a, b).relative_l2 for a, b in zip(peer.run(), expected, strict=True))
        for peer in opened
    }
    progress("running all in turns")
    times = interleave({peer.name: peer.run for peer in opened}, budget_s, PAUSE_S)
    entrants = tuple(
        Entrant(peer.name, peer.label, times[peer.name].min_s, times[peer.name].median_s, errors[peer.name])
        for peer in opened
    )
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Race(name, setup.machine.name, setup.workers, date, times[OURS].runs, entrants, missing)
