"""Measured choices: where a region may run in several ways, they are timed and the fastest is taken.

In: how to compile a graph with given choices. Out: the program compiled with the best ones, its ledger with
what was measured. Ways are timed within the whole model, one of every region at a time and in turns with the
cost model's own, so that each finds in the caches what it will find later. Times are kept on disk.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from onepass.core.errors import UserError
from onepass.core.files import write_text
from onepass.cost.machine import Machine
from onepass.forms.regions import Choice, Choices, Option
from onepass.forms.traffic import serving_level
from onepass.fuse.plan import Decision, Plan, Timed, Tuned
from onepass.ops.opdef import Array
from onepass.pipeline import Compiled
from onepass.report.units import plural
from onepass.runtime.program import Program
from onepass.targets.cache import CacheEvent, cache_key
from onepass.targets.llvm.description import TargetDescription

TIE = 0.02
"""Another way must be faster than the cost model's own by this share of its time, or nothing changes."""
LEAST_TURNS, MOST_TURNS, TURNS_S = 3, 12, 1.0
"""Turns of two programs go on, within their limits, for about so many seconds."""
PLANS = 3
"""What is chosen may make other regions, which are timed in turn: plans that are made at most."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Place:
    """What measured times depend on besides the kernels. `directory` None: nothing is kept."""

    machine: Machine
    target: TargetDescription
    workers: int
    directory: Path | None


@dataclass(frozen=True, slots=True)
class _Site:
    """A region with several ways to run. `key` is that of all regions which do the same."""

    key: str
    name: str
    nodes: frozenset[str]
    options: tuple[Option, ...]


Compile = Callable[[Choices, Mapping[str, bytes]], Compiled]
"""Compiles with given choices; the mapping is object code that is known, by cache key."""


def tune(
    compile_with: Compile, place: Place, known: Mapping[str, bytes], step: Callable[[str], None]
) -> Compiled:
    """Compiles with the fastest ways; `step` is told what is done next.

    `known` holds object code and measured times by key, as `Compiled.objects` of the result does.
    """
    tuner = _Tuner(compile_with, place, dict(known), step)
    compiled = tuner.plan()
    for _ in range(PLANS):
        sites = _sites(compiled, place)
        if not sites:
            break
        tuner.settle(compiled, sites)
        compiled = tuner.plan()
    tuned = tuple(tuner.tuned)
    decisions = tuple(_with_times(d, tuned) for d in compiled.plan.decisions)
    plan = replace(compiled.plan, decisions=decisions, tuned=tuned)
    events = (*compiled.events, *tuner.events)
    return replace(compiled, plan=plan, events=events, objects=tuner.known)


class _Tuner:
    """`choices` are those made so far, `tuned` what they rest on."""

    def __init__(
        self, compile_with: Compile, place: Place, known: dict[str, bytes], step: Callable[[str], None]
    ) -> None:
        self.compile_with, self.place, self.known, self.step = compile_with, place, known, step
        self.choices: dict[str, Choice] = {}
        self.tuned: list[Tuned] = []
        self.events: list[CacheEvent] = []

    def plan(self) -> Compiled:
        """Compiled with the choices made so far; others are left to the cost model."""
        compiled = self.compile_with(self.choices, self.known)
        self.known |= compiled.objects
        return compiled

    def settle(self, compiled: Compiled, sites: Sequence[_Site]) -> None:
        """Chooses for `sites`, by times that are known or else measured."""
        seconds = {site.key: self.load(site) for site in sites}
        missing = [site for site in sites if seconds[site.key] is None]
        if missing:
            measured = self.measure(compiled, missing)
            seconds |= measured
            for site in {site.key: site for site in missing}.values():
                self.store(site, measured[site.key])
        for site in sites:
            found = seconds[site.key]
            assert found is not None
            record = _judged(site, found)
            self.tuned.append(record)
            self.choices |= site.options[record.chosen].choices

    def measure(self, compiled: Compiled, sites: Sequence[_Site]) -> dict[str, list[float]]:
        """Seconds of each option by key of the site, with all regions that the option makes others of.

        Infinite where other sites are among them.
        """
        own: dict[str, float] = {}
        ratios: dict[str, list[float]] = {site.key: [1.0] for site in sites}
        arrays = _random_inputs(compiled.program)
        most = max(len(site.options) for site in sites)
        for way in range(1, most):
            asked = [site for site in sites if way < len(site.options)]
            self.step(f"timing other ways to run {plural(len(asked), 'region')} ({way} of {most - 1})")
            wanted = [choice for site in asked for choice in site.options[way].choices.items()]
            other = self.compile_with(self.choices | dict(wanted), self.known)
            times = in_turns((compiled.program, other.program), arrays)
            pairs: dict[str, list[tuple[float, float]]] = {}
            settled = frozenset(node for site in asked for node in site.nodes)
            for site in asked:
                area = _area((compiled.plan, other.plan), site.nodes)
                before, after = (
                    _seconds(each.plan, by_region, area)
                    for each, by_region in zip((compiled, other), times, strict=True)
                )
                fair = area & settled == site.nodes
                pairs.setdefault(site.key, []).append((before, after if fair else math.inf))
            for key, found in pairs.items():
                total, others = map(sum, zip(*found, strict=True))
                own[key] = min(own.get(key, math.inf), total / len(found))
                ratios[key].append(others / total)
        return {key: [own[key] * ratio for ratio in each] for key, each in ratios.items()}

    def load(self, site: _Site) -> list[float] | None:
        """The times kept for the options of a site, None where there are none to trust."""
        name, directory = _times_name(site), self.place.directory
        try:
            if name not in self.known:
                if directory is None:
                    return None
                self.known[name] = (directory / name).read_bytes()
            return _times(self.known[name], site)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError):
            self.known.pop(name, None)
            reason = f"measured times in {directory} cannot be read; measured again"
            self.events.append(CacheEvent(site.key, "corrupt", reason))
            return None

    def store(self, site: _Site, seconds: Sequence[float]) -> None:
        """Keeps the times of a site; a failure is only noted."""
        name, directory = _times_name(site), self.place.directory
        ways = [option.what for option in site.options]
        text = json.dumps({"format": _FORMAT, "ways": ways, "seconds": list(seconds)}, indent=1)
        self.known[name] = text.encode()
        try:
            if directory is not None:
                write_text(directory / name, text)
        except UserError as error:
            reason = f"cannot write to {directory}: {error.why}; measured times are not kept"
            self.events.append(CacheEvent(site.key, "unwritable", reason))


def _sites(compiled: Compiled, place: Place) -> list[_Site]:
    symbols = {launch.region: launch.symbol for launch in compiled.program.launches}
    level = serving_level(compiled.plan.graph.constant_bytes, place.machine, place.workers)
    found = []
    for region in compiled.plan.regions:
        if region.options and region.id in symbols:
            code = cache_key(symbols[region.id], place.target)
            ways = [option.what for option in region.options]
            parts = (code, ways, level, place.machine.name, place.workers, version("onepass"))
            key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
            nodes = frozenset(node.name for node in region.nodes)
            found.append(_Site(key, region.name, nodes, region.options))
    return found


def _judged(site: _Site, seconds: Sequence[float]) -> Tuned:
    ways = zip(site.options, seconds, strict=True)
    timed = tuple(Timed(option.what, option.seconds, measured) for option, measured in ways)
    best = min(range(len(seconds)), key=lambda way: seconds[way])
    return Tuned(site.name, site.nodes, timed, best if seconds[best] < (1 - TIE) * seconds[0] else 0)


def _with_times(decision: Decision, tuned: Iterable[Tuned]) -> Decision:
    """`decision` with the times of the region that its consumer was in when that was timed."""
    for record in tuned:
        if decision.consumer in record.nodes:
            chosen = record.timed[record.chosen]
            others = sorted((way for way in record.timed if way is not chosen), key=lambda t: t.measured_s)
            return replace(decision, timed=(chosen, *others))
    return decision


def _area(plans: Iterable[Plan], nodes: frozenset[str]) -> frozenset[str]:
    """`nodes` and those that share regions with them, directly or not, in any of `plans`."""
    members = [{node.name for node in region.nodes} for plan in plans for region in plan.regions]
    while True:
        wider = nodes.union(*(region for region in members if region & nodes))
        if wider == nodes:
            return nodes
        nodes = wider


def _seconds(plan: Plan, by_region: Mapping[int, float], nodes: frozenset[str]) -> float:
    """Of the regions that hold any of `nodes`."""
    held = [region.id for region in plan.regions if any(node.name in nodes for node in region.nodes)]
    return sum(by_region.get(number, 0.0) for number in held)


def in_turns(programs: Sequence[Program], arrays: Sequence[Array]) -> list[dict[int, float]]:
    """Least seconds of each region of each program, which take turns, A B A B.

    Of a turn's runs the median: where a worker is late from a barrier, one launch looks shorter than it is.
    """
    least: list[dict[int, float]] = [{} for _ in programs]
    spent, turns = 0.0, 0
    while turns < LEAST_TURNS or (turns < MOST_TURNS and spent < TURNS_S):
        for program, found in zip(programs, least, strict=True):
            trace = program.trace(arrays, runs=3)
            spent += 3 * trace.median_s
            for launch in trace.launches:
                found[launch.region] = min(found.get(launch.region, math.inf), launch.median_s)
        turns += 1
    return least


def _random_inputs(program: Program) -> list[Array]:
    """Normal numbers, and zeros for what may be an index."""
    rng, found = np.random.default_rng(0), list[Array]()
    for _, kind in program.inputs:
        values = rng.standard_normal(kind.shape) if kind.dtype.is_float else np.zeros(kind.shape)
        found.append(values.astype(kind.dtype.numpy))
    return found


def _times_name(site: _Site) -> str:
    return f"times-{site.key}.json"


def _times(data: bytes, site: _Site) -> list[float]:
    """Checked: nothing but a positive number for each option; raises as JSON and look-ups do."""
    row = json.loads(data)
    seconds = [float(value) for value in row["seconds"]]
    if row["format"] != _FORMAT or len(seconds) != len(site.options):
        raise ValueError("times of other ways")
    if not all(value > 0 for value in seconds) or not math.isfinite(seconds[0]):
        raise ValueError("no times")
    return seconds
