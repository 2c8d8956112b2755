"""Random graphs: unfused, fused by price and fused wherever legal, all agree with the float64 oracle."""

import random

import pytest
from compiled import check, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import random_graph

from onepass.graph.verify import verify


@settings(max_examples=35, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.randoms(use_true_random=False))
def test_random_graph(source):
    graph, inputs = random_graph(source)
    verify(graph)
    check(graph, inputs)


@pytest.mark.parametrize("seed", [16, 51, 53, 91, 99, 394, 5091, 5153])
def test_graph_of_seed(seed):
    graph, inputs = random_graph(random.Random(seed))
    verify(graph)
    check(graph, inputs)


def test_the_number_of_workers_changes_no_bit():
    for seed in (3, 7, 11):
        graph, inputs = random_graph(random.Random(seed))
        outputs = [run(graph, inputs, workers=workers) for workers in (1, 2, 3)]
        for name in graph.outputs:
            assert len({found[name].tobytes() for found in outputs}) == 1
