"""ONEPASS_CHECK=1: a kernel or a graph that breaks a rule of its language is named before it is compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest

import onepass
from onepass import pipeline
from onepass.core.errors import InternalError
from onepass.loops.build import const
from onepass.loops.ir import Store
from onepass.zoo.catalog import build

SHAPES = {"input": (2, 16)}


def broken(context, shaped):
    """The right kernel, and a store to a buffer that it does not have."""
    built = BUILD(context, shaped)
    body = (*built.kernel.body, Store("nowhere", (const(0),), const(0)))
    return replace(built, kernel=replace(built.kernel, body=body))


BUILD = pipeline.build_region


def test_a_broken_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("row_chain", width=16)
    monkeypatch.setenv("ONEPASS_CHECK", "1")
    onepass.compile(model, shapes=SHAPES)
    monkeypatch.setattr(pipeline, "build_region", broken)
    with pytest.raises(InternalError, match="nowhere"):
        onepass.compile(model, shapes=SHAPES)


def test_a_broken_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(graph):
        return replace(graph, nodes=graph.nodes[::-1])

    model = build("row_chain", width=16)
    monkeypatch.setenv("ONEPASS_CHECK", "1")
    monkeypatch.setattr(pipeline, "GRAPH_PASSES", (swapped,))
    with pytest.raises(InternalError, match="swapped"):
        onepass.compile(model, shapes=SHAPES)
