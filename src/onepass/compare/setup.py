"""What every compilation of one session shares: settings, the measured machine, the processor, workers.

In: settings. Out: a `Setup`, with each setting checked before any work is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from onepass.compare.tune import Place, tune
from onepass.core.settings import Settings
from onepass.cost.machine import Machine
from onepass.forms.regions import Choices
from onepass.frontends.onnx_model import OnnxModel
from onepass.fuse.planner import FuseMode
from onepass.graph.ir import Graph
from onepass.ops.opdef import Array
from onepass.pipeline import Compiled, compile_graph
from onepass.report.ledger import check_name
from onepass.runtime.machine_cache import measure_machine
from onepass.runtime.workers import worker_count
from onepass.targets.cache import default_directory
from onepass.targets.llvm.description import TargetDescription, describe_host
from onepass.zoo.catalog import example_inputs

_measuring = threading.Lock()


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that `compile_graph` needs besides the graph; `step` is told what tuning does next."""

    settings: Settings
    machine: Machine
    target: TargetDescription
    workers: int
    step: Callable[[str], None] = lambda step: None

    def with_fuse(self, fuse: str) -> Setup:
        """The same with another way to fuse."""
        return replace(self, settings=replace(self.settings, fuse=fuse))

    def compile(
        self, graph: Graph, known: Mapping[str, bytes] | None = None, keep: bool = False
    ) -> Compiled:
        """`compile_graph` as set up, and `tune` where that is asked for.

        Raises UserError for a node name in `only=` that the graph does not have.
        """
        for name in FuseMode.parse(self.settings.fuse).names:
            check_name(name, [node.name for node in graph.nodes])
        settings = self.settings

        def compile_with(choices: Choices | None, known: Mapping[str, bytes]) -> Compiled:
            return compile_graph(
                graph, settings, self.machine, self.target, self.workers, known, keep, choices
            )

        if not settings.tune:
            return compile_with(None, known or {})
        directory = default_directory() if settings.cache else None
        place = Place(self.machine, self.target, self.workers, directory)
        return tune(compile_with, place, known or {}, self.step)


def inputs_of(loaded: OnnxModel, graph: Graph) -> dict[str, Array]:
    """Random inputs for the shapes of `graph`; see `example_inputs`."""
    return example_inputs(loaded.proto, {name: graph.types[name].shape for name in graph.inputs})


def set_up(settings: Settings, step: Callable[[str], None] = lambda step: None) -> Setup:
    """Checks the settings (OptionError) and measures the machine unless its roofs are known."""
    workers = worker_count(settings.threads)
    FuseMode.parse(settings.fuse)
    target = describe_host()
    # Two measurements at a time would disturb each other.
    with _measuring:
        machine = measure_machine(workers=workers)
    return Setup(settings, machine, target, workers, step)
