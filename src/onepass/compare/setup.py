"""What every compilation of one session shares: settings, the measured machine, the processor, workers.

In: settings. Out: a `Setup`, with each setting checked before any work is done.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onepass.core.settings import Settings
from onepass.cost.machine import Machine
from onepass.frontends.onnx_model import OnnxModel
from onepass.fuse.planner import FuseMode
from onepass.graph.ir import Graph
from onepass.ops.opdef import Array
from onepass.pipeline import Compiled, compile_graph
from onepass.report.ledger import check_name
from onepass.runtime.machine_cache import measure_machine
from onepass.runtime.workers import worker_count
from onepass.targets.llvm.description import TargetDescription, describe_host
from onepass.zoo.catalog import example_inputs

_measuring = threading.Lock()


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that `compile_graph` needs besides the graph."""

    settings: Settings
    machine: Machine
    target: TargetDescription
    workers: int

    def with_fuse(self, fuse: str) -> Setup:
        """The same with another way to fuse."""
        return replace(self, settings=replace(self.settings, fuse=fuse))

    def compile(
        self, graph: Graph, known: Mapping[str, bytes] | None = None, keep: bool = False
    ) -> Compiled:
        """`compile_graph` as set up.

        Raises UserError for a node name in `only=` that the graph does not have.
        """
        for name in FuseMode.parse(self.settings.fuse).names:
            check_name(name, [node.name for node in graph.nodes])
        return compile_graph(graph, self.settings, self.machine, self.target, self.workers, known, keep)


def inputs_of(loaded: OnnxModel, graph: Graph) -> dict[str, Array]:
    """Random inputs for the shapes of `graph`; see `example_inputs`."""
    return example_inputs(loaded.proto, {name: graph.types[name].shape for name in graph.inputs})


def set_up(settings: Settings) -> Setup:
    """Checks the settings (OptionError) and measures the machine unless its roofs are known."""
    workers = worker_count(settings.threads)
    FuseMode.parse(settings.fuse)
    target = describe_host()
    # Two measurements at a time would disturb each other.
    with _measuring:
        machine = measure_machine(workers=workers)
    return Setup(settings, machine, target, workers)
