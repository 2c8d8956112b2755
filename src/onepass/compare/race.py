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
from onepass.compare.timing import BUDGET_S, LEAST_ROUNDS, interleave
from onepass.core.errors import UserError
from onepass.core.tensor import Shape
from onepass.core.tolerance import compare
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import OnnxModel
from onepass.fuse.plan import Tuned
from onepass.ops.opdef import Array

OURS, UNFUSED = "onepass", "unfused"
PAUSE_S = 0.02
"""Before each turn: worker threads of the runtime before spin a while for the next job."""
WRONG = 1e-2
"""Relative error of results that are another computation's, beyond what rounding makes of any order."""
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
    """`entrants`: onepass, then the peers that ran; `missing`: the others, each with the reason. `limit_s`:
    what the measured roofs allow the kernels of onepass at best, the sum of their `Estimate.limit_s`.
    `tuned`: as in the plan."""

    model: str
    machine: str
    threads: int
    date: str
    runs: int
    entrants: tuple[Entrant, ...]
    unfused: Entrant
    missing: Mapping[str, str]
    limit_s: float
    tuned: tuple[Tuned, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Minimum time of the best peer over that of onepass; None where no peer ran."""
        ours, *peers = self.entrants
        return min(peer.min_s for peer in peers) / ours.min_s if peers else None

    def verdict(self) -> str:
        """Who wins, by how much."""
        ratio = self.ratio
        if ratio is None:
            return "No peer ran, so there is nothing to compare with."
        best = min(self.entrants[1:], key=lambda entrant: entrant.min_s)
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
    least_rounds: int = LEAST_ROUNDS,
) -> Race:
    """Times the model in onepass, as set up and op by op, and in each of `peers`.

    A peer that cannot run it is noted, not an error. Raises OptionError for an unknown peer, UserError where
    onepass cannot compile the model.
    """
    check_peers(peers)
    progress("compiling")
    graph = import_onnx(loaded, shapes)
    compiled = setup.compile(graph)
    inputs = inputs_of(loaded, graph)
    arrays = [inputs[name] for name in graph.inputs]
    task = Task(loaded, graph, inputs, setup.workers)
    unfused = setup.with_fuse("none").compile(graph)
    opened = [
        Peer(OURS, OURS, lambda: compiled.program.run(arrays)),
        Peer(UNFUSED, f"{OURS}, {UNFUSED}", lambda: unfused.program.run(arrays)),
    ]
    expected = compiled.program.run(arrays)
    errors = {peer.name: _difference(peer, expected) for peer in opened}
    missing: dict[str, str] = {}
    for peer_name in dict.fromkeys(peers):
        progress(f"preparing {peer_name}")
        try:
            peer = open_peer(peer_name, task)
            errors[peer_name] = _difference(peer, expected)
            if errors[peer_name] > WRONG:
                raise UserError(f"its results differ by {errors[peer_name]:.1e}, more than rounding explains")
            opened.append(peer)
        except UserError as error:
            missing[peer_name] = "; ".join(filter(None, (error.what, error.where, error.why, error.remedy)))
    progress("running all in turns")
    times = interleave({peer.name: peer.run for peer in opened}, budget_s, PAUSE_S, least_rounds)
    entrants = {
        peer.name: Entrant(
            peer.name, peer.label, times[peer.name].min_s, times[peer.name].median_s, errors[peer.name]
        )
        for peer in opened
    }
    return Race(
        model=name,
        machine=setup.machine.name,
        threads=setup.workers,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        runs=times[OURS].runs,
        unfused=entrants.pop(UNFUSED),
        entrants=tuple(entrants.values()),
        missing=missing,
        limit_s=sum(region.estimate.limit_s for region in compiled.plan.regions),
        tuned=compiled.plan.tuned,
    )


def _difference(peer: Peer, expected: Sequence[Array]) -> float:
    """Relative error of the worst output, against `expected`."""
    return max(compare(a, b).relative_l2 for a, b in zip(peer.run(), expected, strict=True))
