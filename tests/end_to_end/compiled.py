"""Compiles and runs graphs for the tests: no cache, made-up machine figures, every kernel verified."""

import numpy as np
from region_runs import machine

from onepass.core.settings import Settings
from onepass.core.tolerance import compare
from onepass.graph.interpret import evaluate
from onepass.loops.verify import verify
from onepass.pipeline import compile_graph
from onepass.targets.llvm.description import describe_host


def compiled(graph, fuse="auto", workers=2):
    """The compiled graph; each of its kernels follows the rules of the loop IR."""
    target = describe_host()
    settings = Settings(fuse=fuse, cache=False)
    made = compile_graph(graph, settings, machine(target.vector_bits // 32), target, workers)
    for kernel in made.kernels.values():
        verify(kernel)
    return made


def run(graph, inputs, fuse="auto", workers=2):
    """Outputs by name."""
    made = compiled(graph, fuse, workers)
    return dict(zip(graph.outputs, made.program.run([inputs[name] for name in graph.inputs]), strict=True))


def largest(values):
    """The largest finite magnitude, at least 1: what cancels is of that size."""
    found = [np.abs(a[np.isfinite(a)]).max(initial=0) for a in values if a.dtype.kind == "f"]
    return max(1.0, *(float(size) for size in found))


def check(graph, inputs, fuse=("none", "auto", "all"), length=1024):
    """None, auto and all agree with the float64 oracle."""
    inner = [name for node in graph.nodes for name in node.outputs if name]
    exact = evaluate(graph, inputs, np.float64, keep=inner)
    magnitude = largest(exact.values())
    for mode in fuse:
        found = run(graph, inputs, mode)
        for name in graph.outputs:
            assert found[name].dtype == graph.types[name].dtype.numpy
            comparison = compare(found[name], exact[name], length, operations=64, magnitude=magnitude)
            assert comparison.within, f"fuse {mode}, {name}: {comparison}"
