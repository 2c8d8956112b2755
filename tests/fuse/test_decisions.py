"""The ledger: a case for each reason, one decision for each edge, the modes, and exact bytes."""

import random
from collections import Counter

import numpy as np
import pytest
from random_graphs import random_graph
from region_runs import graph_of, machine, planned

from onepass.core.errors import OptionError
from onepass.cost.gpu import Fit, Resources
from onepass.forms.regions import Context, Cut
from onepass.frontends.onnx_import import import_onnx
from onepass.fuse.layouts import assign_layouts
from onepass.fuse.planner import FuseMode, make_plan
from onepass.fuse.rules import REASONS
from onepass.pipeline import GRAPH_PASSES
from onepass.report.ledger import why
from onepass.zoo import catalog

CONV = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "group": 1}
WEIGHTS = {"w": np.ones((8, 8, 3, 3), np.float32)}
IMAGE, SQUARE = (1, 8, 6, 6), (6, 6)


def relu(x):
    return ("relu", x, {})


def turn(x):
    return ("transpose", x, {"perm": (1, 0)})


def reduce_sum(x, axis=1):
    return ("reduce_sum", x, {"axes": (axis,), "keepdims": 0})


def softmax(x, axis=1):
    return ("softmax", x, {"axis": axis})


def two_convolutions(image, kernel):
    attrs = {**CONV, "kernel_shape": (kernel, kernel), "pads": (kernel // 2,) * 4}
    nodes = [("conv", "x w", attrs), ("conv", "v0 w", attrs), reduce_sum("v1", 3)]
    return graph_of({"x": image}, *nodes, constants={"w": np.ones((8, 8, kernel, kernel), np.float32)})


# reason -> (graph, value, consumer's position)
CASES = {
    "fused": (lambda: graph_of({"x": SQUARE}, relu("x"), ("exp", "v0", {})), "v0", 1),
    "computed_again": (
        lambda: graph_of({"x": (64, 96)}, relu("x"), turn("v0"), reduce_sum("v0"), outputs=("v1", "v2")),
        "v0", 1),
    "row_in_cache": (lambda: graph_of({"x": SQUARE}, relu("x"), softmax("v0")), "v0", 1),
    "rows_in_cache": (lambda: two_convolutions((1, 8, 1024, 512), 1), "v0", 1),
    "graph_boundary": (lambda: graph_of({"x": SQUARE}, relu("x")), "x", 0),
    "view": (
        lambda: graph_of({"x": SQUARE}, relu("x"), ("reshape", "v0", {"shape": (36,)}), relu("v1")), "v0", 1),
    "in_place_concat": (
        lambda: graph_of({"x": IMAGE}, ("conv", "x w", CONV), ("conv", "x w", CONV),
                         ("concat", "v0 v1", {"axis": 1}), ("conv", "v2 u", CONV),
                         constants={**WEIGHTS, "u": np.ones((8, 16, 3, 3), np.float32)}), "v0", 2),
    "in_place_slice": (
        lambda: graph_of({"x": IMAGE}, ("conv", "x w", CONV), ("slice", "v0", {
            "starts": (4,), "ends": (8,), "axes": (1,), "steps": (1,)}), ("softmax", "v1", {"axis": 1}),
                         constants=WEIGHTS), "v0", 1),
    "also_output": (
        lambda: graph_of({"x": SQUARE}, relu("x"), ("exp", "v0", {}), outputs=("v0", "v1")), "v0", 1),
    "no_cycle": (
        lambda: graph_of({"x": SQUARE}, relu("x"), ("matmul", "v0 v0", {}), softmax("v1"),
                         ("add", "v0 v2", {})), "v0", 3),
    "one_reduction": (lambda: graph_of({"x": SQUARE}, ("matmul", "x x", {}), softmax("v0")), "v0", 1),
    "same_space": (lambda: graph_of({"x": SQUARE}, ("matmul", "x x", {}), turn("v0")), "v0", 1),
    "prologue_would_repeat": (
        lambda: graph_of({"x": IMAGE}, ("exp", "x", {}), ("conv", "v0 w", CONV), constants=WEIGHTS), "v0", 1),
    "border_of_zeros": (
        lambda: graph_of({"x": (1, 6, 6, 8)}, ("transpose", "x", {"perm": (0, 3, 1, 2)}),
                         ("conv", "v0 w", CONV), constants=WEIGHTS), "v0", 1),
    "several_consumers": (
        lambda: graph_of({"x": SQUARE}, relu("x"), turn("v0"), outputs=("v0", "v1")), "v0", 1),
    "form_mismatch": (lambda: graph_of({"x": SQUARE}, softmax("x", 1), softmax("v0", 0)), "v0", 1),
}  # fmt: skip


def decision(plan, value, consumer):
    found = [d for d in plan.decisions if (d.value, d.consumer) == (value, consumer)]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("reason", CASES)
def test_reason(reason):
    build, value, position = CASES[reason]
    graph = build()
    _, made = planned(graph)
    found = decision(made.plan, value, graph.nodes[position].name)
    assert found.reason == reason, found
    inside = {"fused": "register", "also_output": "register", "computed_again": "register",
              "row_in_cache": "cache", "rows_in_cache": "cache"}  # fmt: skip
    assert found.home == inside.get(reason, "memory")
    assert found.detail.startswith(REASONS[reason])


def test_fusing_that_does_not_pay_is_slower():
    """The softmax takes its row twice: in one kernel the sigmoid would be computed twice."""
    found = [d for d in zoo_plan("row_chain", "auto").plan.decisions if d.reason == "slower"]
    assert found
    for d in found:
        assert (d.home, d.alternative, d.alternative_s > d.seconds) == ("memory", "register", True)
    assert not any(d.reason == "slower" for d in zoo_plan("row_chain", "all").plan.decisions)


def test_rows_that_do_not_pay_are_told():
    """A small value comes back from a cache in any case, and its halo would be computed twice."""
    _, made = planned(two_convolutions((1, 8, 6, 6), 3))
    found = decision(made.plan, "v0", "conv1")
    assert (found.home, found.reason, found.alternative) == ("memory", "one_reduction", "cache")
    assert "through rows in cache" in found.detail
    assert found.alternative_s > found.seconds


def test_limits_count_chains():
    graph = two_convolutions((1, 8, 1024, 512), 1)
    found = [decision(planned(graph, mode)[1].plan, "v0", "conv1") for mode in ("limit=0", "limit=1")]
    assert [d.reason for d in found] == ["switched_off", "rows_in_cache"]


def test_switched_off():
    _, made = planned(graph_of({"x": SQUARE}, relu("x"), ("exp", "v0", {})), "none")
    assert decision(made.plan, "v0", "exp1").reason == "switched_off"


def test_every_reason_has_a_case():
    elsewhere = {"slower", "switched_off", "does_not_fit", "winograd"}  # the last: test_winograd.py
    assert set(CASES) | elsewhere == set(REASONS)


def test_nodes_that_do_not_fit_one_kernel_stay_apart():
    graph = CASES["fused"][0]()
    first, second = graph.nodes[0].name, graph.nodes[1].name
    tried = Fit("both", "they spill", Resources(255, 300, 0, False))
    cut = Cut(frozenset({first}), frozenset({second}), (tried,))
    context = Context(graph, {}, machine(), 2, frozenset(), cuts=(cut,))
    made = make_plan(context, FuseMode.parse("auto"))
    assert all(not {first, second} <= {node.name for node in region.nodes} for region in made.plan.regions)
    told = [d for d in made.plan.decisions if d.reason == "does_not_fit"]
    assert told and all(d.home == "memory" and d.fits == (tried,) for d in told)
    assert "255 registers, 300 bytes spilled" in why(made.plan, first, second)


def edges(graph):
    producers = {name: node.name for node in graph.nodes for name in node.outputs if name}
    found = []
    for value in graph.types:
        if value in producers or value in graph.inputs:
            readers = [node.name for node in graph.nodes if value in node.inputs]
            readers += [""] if value in graph.outputs else []
            found += [(value, producers.get(value, ""), reader) for reader in readers]
    return Counter(found)


def regions_are_sound(plan):
    """Each node runs once, and every region comes after those that it reads."""
    assert sorted(n.name for r in plan.regions for n in r.nodes) == sorted(n.name for n in plan.graph.nodes)
    ready = {*plan.graph.inputs, *plan.graph.constants}
    for region in plan.regions:
        assert set(region.inputs) <= ready | {n for n in region.inputs if n not in plan.graph.types}
        ready |= set(region.outputs)
    assert set(plan.graph.outputs) <= ready


@pytest.mark.parametrize("mode", ["none", "auto", "all", "limit=2"])
def test_every_edge_has_one_decision(mode):
    for seed in range(25):
        graph, _ = random_graph(random.Random(seed))
        for step in GRAPH_PASSES:
            graph = step(graph)
        _, made = planned(graph, mode)
        assert Counter((d.value, d.producer, d.consumer) for d in made.plan.decisions) == edges(
            made.plan.graph
        )
        regions_are_sound(made.plan)
        for d in made.plan.decisions:
            assert d.reason in REASONS
            assert (d.home == "memory") == (not d.saved_bytes or d.reason.startswith("in_place"))


def zoo_plan(name, mode, **options):
    model = catalog.build(name, **options)
    graph = import_onnx(model, catalog.default_shapes(model))
    for step in GRAPH_PASSES:
        graph = step(graph)
    graph, layouts = assign_layouts(graph, 16, frozenset())
    return make_plan(
        Context(graph, layouts, machine(16), 2, frozenset({"fold_batch_norm"})), FuseMode.parse(mode)
    )


def launches(made):
    return sum(shaped is not None for shaped in made.shaped)


def test_resnet50_runs_in_at_most_60_kernels():
    none, auto = zoo_plan("resnet50", "none").plan, zoo_plan("resnet50", "auto")
    assert sum(len(region.nodes) for region in none.regions) == 176  # its 175 and the copy of the input
    assert launches(auto) <= 60
    followers = {"batch_normalization", "relu", "add"}
    alone = [r for r in auto.plan.regions if len(r.nodes) == 1 and r.nodes[0].op in followers]
    assert not alone


@pytest.mark.parametrize(("name", "options", "most"), [
    ("mobilenet_v2", {}, 56), ("vector_add", {}, 1), ("bert_base", {"layers": 1}, 22),
])  # fmt: skip
def test_launches(name, options, most):
    assert launches(zoo_plan(name, "auto", **options)) <= most


def test_bytes_are_exact():
    """relu -> exp -> add on 48 floats: 192 bytes a value, each value inside saves its write and its read."""
    graph = graph_of({"x": (6, 8)}, relu("x"), ("exp", "v0", {}), ("add", "v1 v0", {}))
    _, none = planned(graph, "none")
    _, fused = planned(graph, "all")
    assert [r.estimate.traffic.compulsory_bytes for r in none.plan.regions] == [384, 384, 576]
    assert [r.estimate.traffic.compulsory_bytes for r in fused.plan.regions] == [384]
    assert {d.value_bytes for d in none.plan.decisions} == {192}
    assert all(not d.saved_bytes for d in none.plan.decisions)
    assert decision(fused.plan, "v1", "add2").saved_bytes == {"l2": 384}


def test_what_is_in_place_saves_its_copy():
    """Two parts of 8 channels: neither is read and written again, and the concatenation is no kernel."""
    _, made = planned(CASES["in_place_concat"][0]())
    part = 4 * 8 * 8 * 8  # 6x6 with a border of one
    found = [decision(made.plan, value, "concat2") for value in ("v0", "v1")]
    assert [d.saved_bytes for d in found] == [{"l2": 2 * part}] * 2
    views = [r.estimate.traffic.compulsory_bytes for r in made.plan.regions if r.form == "view"]
    assert (views, launches(made)) == ([0], 4)  # the copy of the input, and three convolutions


def test_bytes_of_parts_and_of_folded_statistics_are_exact():
    cut = {"axes": (1,), "steps": (1,)}
    halves = [("slice", "x", {"starts": (k,), "ends": (k + 32,), **cut}) for k in (0, 32)]
    _, made = planned(graph_of({"x": (4, 64)}, *halves, ("mul", "v0 v1", {})), "all")
    assert [r.estimate.traffic.compulsory_bytes for r in made.plan.regions] == [4 * (4 * 64 + 4 * 32)]
    statistics = {name: np.ones(8, np.float32) for name in "sbmv"}
    norm = ("batch_normalization", "x s b m v", {"epsilon": 1e-5})
    _, made = planned(graph_of({"x": IMAGE}, norm, constants=statistics))  # x * a + b
    assert [r.estimate.traffic.compulsory_bytes for r in made.plan.regions] == [4 * (2 * 8 * 36 + 2 * 8)]


def test_saved_bytes_add_up_to_what_fusing_saves():
    """Three readers of one value within a kernel: one write and three reads less, not three writes."""
    nodes = [relu("x"), ("neg", "v0", {}), ("abs", "v0", {}), ("add", "v1 v2", {}), ("add", "v3 v0", {})]
    plans = [planned(graph_of({"x": (6, 8)}, *nodes), mode)[1].plan for mode in ("none", "all")]
    moved = [sum(r.estimate.traffic.compulsory_bytes for r in plan.regions) for plan in plans]
    assert sum(sum(d.saved_bytes.values()) for d in plans[1].decisions) == moved[0] - moved[1]


def test_alternatives_are_priced_against_the_plan_as_it_is():
    """Also where the regions at an edge's ends grew after it was decided."""
    for name, options in [("mobilenet_v2", {}), ("bert_base", {"layers": 1}), ("row_chain", {})]:
        for d in zoo_plan(name, "auto", **options).plan.decisions:
            if d.alternative is not None:
                assert d.alternative_s >= d.seconds, d


def test_bytes_of_a_blocked_value_count_its_border_and_unused_lanes():
    weights = {"w": np.ones((6, 3, 3, 3), np.float32), "u": np.ones((4, 6, 3, 3), np.float32)}
    graph = graph_of({"x": (1, 3, 5, 5)}, ("conv", "x w", CONV), ("conv", "v0 u", CONV), constants=weights)
    _, made = planned(graph, "none")
    assert decision(made.plan, "v0", "conv1").value_bytes == 4 * (2 * 4) * 7 * 7


def test_none_fuses_nothing_and_limits_count_merges():
    graph = graph_of({"x": SQUARE}, *(("exp", f"v{k}" if k >= 0 else "x", {}) for k in range(-1, 5)))
    counts = [len(planned(graph, f"limit={n}")[1].plan.regions) for n in range(7)]
    assert counts == [6, 5, 4, 3, 2, 1, 1]
    assert len(planned(graph, "none")[1].plan.regions) == 6


def test_only_fuses_regions_that_hold_the_node():
    nodes = [
        ("exp", "x", {}),
        ("abs", "v0", {}),
        ("matmul", "v1 v1", {}),
        ("exp", "v2", {}),
        ("abs", "v3", {}),
    ]
    graph = graph_of({"x": SQUARE}, *nodes)
    _, made = planned(graph, "only=exp3")
    assert [len(region.nodes) for region in made.plan.regions] == [1, 1, 3]
    assert decision(made.plan, "v0", "abs1").reason == "switched_off"


def recomputing():
    nodes = [relu("x"), turn("v0"), reduce_sum("v0"), ("exp", "x", {}), ("abs", "v3", {})]
    return graph_of({"x": (64, 96)}, *nodes, outputs=("v1", "v2", "v4"))


@pytest.mark.parametrize("op", ["sin", "exp", "tan"])
def test_costly_producers_are_not_copied(op):
    nodes = [(op, "x", {}), turn("v0"), reduce_sum("v0")]
    _, made = planned(graph_of({"x": (64, 96)}, *nodes, outputs=("v1", "v2")))
    assert len(made.plan.graph.nodes) == 3


def test_copies_belong_to_their_node():
    """A copy counts as the node that it repeats, for `only=` too, and what is switched off is not copied."""
    _, made = planned(recomputing(), "only=relu0")
    assert {(n.name, n.user_name) for n in made.plan.graph.nodes if n.user_name != n.name} == {
        ("relu0#again1", "relu0")
    }
    assert sorted(len(region.nodes) for region in made.plan.regions) == [1, 1, 2, 2]
    _, made = planned(recomputing(), "only=abs4")
    assert sorted(len(region.nodes) for region in made.plan.regions) == [1, 1, 1, 2]
    assert decision(made.plan, "v0", "transpose1").detail.endswith("neither side holds a node named in only=")


def test_why_knows_copies_by_the_name_of_their_node():
    plan = planned(recomputing())[1].plan
    assert why(plan, "relu0", "reduce_sum2").startswith("'v0#again1'")
    assert "each reader computes it for itself" in why(plan, "relu0", "transpose1")


def test_limits_lead_from_nothing_to_auto():
    graph = recomputing()
    plans = [planned(graph, mode)[1].plan for mode in ("limit=0", "limit=1", "limit=3", "auto")]
    assert [len(plan.regions) for plan in plans] == [6, 5, 3, 3]
    assert plans[2].decisions == plans[3].decisions
    assert "limit=1" in decision(plans[1], "v3", "abs4").detail


@pytest.mark.parametrize("text", ["most", "limit=", "limit=x", "only=", "only= ,", "none=1", ""])
def test_unknown_mode(text):
    with pytest.raises(OptionError, match="way to fuse"):
        FuseMode.parse(text)


def test_a_chain_of_row_ops_is_one_kernel():
    assert launches(zoo_plan("row_chain", "all")) == 1
