"""Which level serves the values of a kernel."""

import numpy as np
from region_runs import graph_of, planned


def test_a_value_lies_where_what_was_touched_since_leaves_it():
    """Two cores with 1 MiB of L2 each. The weights take 2 MiB and stream past once a run."""
    weights = {"w": np.ones((512, 1024), np.float32)}
    nodes = [("relu", "x", {}), ("matmul", "v0 w", {}), ("relu", "v1", {}), ("relu", "v2", {})]
    _, made = planned(graph_of({"x": (128, 512)}, *nodes, constants=weights), "none")
    kib = [
        {level: size / 1024 for level, size in region.estimate.traffic.bytes_at.items()}
        for region in made.plan.regions
    ]
    assert kib == [
        {"l2": 256, "l3": 256, "memory": 0},  # the caller's array is as old as the last run
        {"l2": 0, "l3": 256 + 2048 + 512, "memory": 0},  # the weights push both values out
        {"l2": 512 + 512, "l3": 0, "memory": 0},
        {"l2": 512, "l3": 512, "memory": 0},  # the result is written to memory of an earlier run
    ]
