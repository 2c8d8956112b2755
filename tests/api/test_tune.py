"""Measured choices with invented times: the fastest way is taken, kept, told, and damage does no harm."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner
from user_models import quick_machine

import onepass
from onepass.cli.app import app
from onepass.compare import setup, tune
from onepass.core.tolerance import compare
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import load_onnx
from onepass.fuse import planner
from onepass.fuse.plan import Timed, Tuned
from onepass.graph.interpret import evaluate
from onepass.report.tuning import regret, tuning_json, tuning_sentence
from onepass.runtime.trace import LaunchTime, Trace

OWN_S = 1e-3


def convolutions():
    """Two equal convolutions of 32 channels with a ReLU, then one that makes the model's output."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        convolutions (float[1,32,12,12] x) => (float[1,32,12,12] y) {
            [c0] a = Conv<pads=[1,1,1,1]>(x, w0)
            [r0] b = Relu(a)
            [c1] c = Conv<pads=[1,1,1,1]>(b, w1)
            [r1] d = Relu(c)
            [c2] y = Conv<pads=[1,1,1,1]>(d, w2)
        }""")
    rng = np.random.default_rng(0)
    for name in ("w0", "w1", "w2"):
        weights = rng.standard_normal((32, 32, 3, 3), np.float32) / 17
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(setup, "measure_machine", quick_machine)
    monkeypatch.setattr(planner, "MOST_SLOWER", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def clock(monkeypatch):
    """A function that sets how long the other ways take, in the order in which they are asked for, against
    one of the cost model; gives the list of measurements made."""

    def set_times(*others):
        asked = []

        def in_turns(programs, arrays):
            asked.append([launch.symbol for launch in programs[1].launches])
            assert [array.shape for array in arrays] == [(1, 32, 12, 12)]
            ratios = (1.0, others[len(asked) - 1] if len(asked) <= len(others) else 2.0)
            return [
                {launch.region: OWN_S * ratio for launch in program.launches}
                for program, ratio in zip(programs, ratios, strict=True)
            ]

        monkeypatch.setattr(tune, "in_turns", in_turns)
        return asked

    return set_times


def compiled(**options):
    return onepass.compile(convolutions(), tune=True, **options)


def test_the_fastest_way_is_taken_and_gives_the_right_result(clock):
    asked = clock(1.5, 0.5, 0.25)
    model = compiled()
    assert len(asked) >= 3 and [record.chosen for record in model.plan.tuned] == [3, 3]
    way = model.plan.tuned[0].timed[3]
    assert way.measured_s == OWN_S / 4
    plain = onepass.compile(convolutions())
    launched = [launch.symbol for launch in model._newest().program.launches]
    assert launched == asked[2] != [launch.symbol for launch in plain._newest().program.launches]
    x = np.random.default_rng(1).standard_normal((1, 32, 12, 12), np.float32)
    graph = import_onnx(load_onnx(convolutions()), {"x": x.shape})
    expected = evaluate(graph, {"x": x}, np.float64)["y"]
    assert compare(model(x)["y"], expected, 3 * 9 * 32).within


def test_direct_and_winograd_are_both_among_the_ways(clock):
    clock()
    for record in compiled().plan.tuned:
        ways = " ".join(way.what for way in record.timed)
        assert "direct" in ways and "F(2x2)" in ways and "F(4x4)" in ways
        assert len({way.what for way in record.timed}) == len(record.timed)


def bottleneck():
    """Expand, depthwise, project: of these convolutions the first two run as one chain of rows."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        bottleneck (float[1,32,12,12] x) => (float[1,32,12,12] y) {
            [expand] a = Conv(x, w0)
            [r0] b = Relu(a)
            [deep] c = Conv<pads=[1,1,1,1], group=128>(b, w1)
            [r1] d = Relu(c)
            [project] y = Conv(d, w2)
        }""")
    rng = np.random.default_rng(0)
    for name, shape in (("w0", (128, 32, 1, 1)), ("w1", (128, 1, 3, 3)), ("w2", (32, 128, 1, 1))):
        weights = rng.standard_normal(shape, np.float32) / 6
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


@pytest.mark.parametrize(("ratio", "apart"), [(0.25, True), (0.5, False), (2.0, False)])
def test_a_chain_is_timed_against_its_members_apart(clock, ratio, apart):
    asked = clock(ratio)
    plan = onepass.compile(bottleneck(), fuse="all", tune=True).plan
    forms = [region.form for region in plan.regions]
    plain = onepass.compile(bottleneck(), fuse="all").plan
    assert "chain" in [region.form for region in plain.regions] and asked
    record = plan.tuned[0]
    assert [way.what for way in record.timed] == ["rows in cache", "apart"] and record.chosen == apart
    assert ("chain" in forms) != apart
    timed = [decision for decision in plan.decisions if decision.consumer == "deep"]
    assert timed and all(len(decision.timed) == 2 for decision in timed)
    x = np.random.default_rng(1).standard_normal((1, 32, 12, 12), np.float32)
    graph = import_onnx(load_onnx(bottleneck()), {"x": x.shape})
    expected = evaluate(graph, {"x": x}, np.float64)["y"]
    assert compare(onepass.compile(bottleneck(), fuse="all", tune=True)(x)["y"], expected, 128).within


def test_a_chain_that_the_cost_model_declines_is_taken_where_it_is_faster(clock, monkeypatch):
    monkeypatch.setattr(planner, "MOST_SLOWER", 100.0)
    plain = onepass.compile(convolutions(), without=["winograd"]).plan
    assert "chain" not in [region.form for region in plain.regions]
    clock(1.6)  # of one region in place of two
    plan = compiled(without=["winograd"]).plan
    assert "chain" in [region.form for region in plan.regions]
    assert [way.what for way in plan.tuned[0].timed] == ["apart", "rows in cache"]


@pytest.mark.parametrize("ratio", [1.0, 1 - tune.TIE / 2, 3.0, float("inf")])
def test_the_cost_model_decides_where_nothing_is_clearly_faster(clock, ratio):
    clock(*[ratio] * 9)
    plan = compiled().plan
    assert [record.chosen for record in plan.tuned] == [0, 0]
    plain = onepass.compile(convolutions()).plan
    assert [region.form for region in plan.regions] == [region.form for region in plain.regions]
    assert plain.tuned == () and all(decision.timed == () for decision in plain.decisions)


def test_kept_times_are_used_again_and_equal_regions_share_them(clock, folder):
    first, asked = clock(0.5), None
    chosen = compiled().plan.tuned
    assert first and len(list(folder.glob("times-*.json"))) == 1
    asked = clock(9.0)
    assert compiled().plan.tuned == chosen and not asked
    assert compiled(cache=False).plan.tuned != chosen and asked


@pytest.mark.parametrize("damage", [
    "", "{", "[]", '{"format": 1}', '{"format": 1, "seconds": 3}', '{"format": 1, "seconds": [1.0]}',
    '{"format": 2, "seconds": SECONDS}', '{"format": 1, "seconds": NEGATIVE}',
])  # fmt: skip
def test_a_damaged_file_is_ignored_with_a_note(clock, folder, damage):
    clock(0.5)
    chosen = compiled().plan.tuned
    (path,) = folder.glob("times-*.json")
    seconds = json.loads(path.read_text())["seconds"]
    damage = damage.replace("SECONDS", str(seconds)).replace("NEGATIVE", str([-s for s in seconds]))
    path.write_text(damage)
    asked = clock(0.5)
    model = compiled()
    assert model.plan.tuned == chosen and asked
    (record,) = model.specializations
    assert any("cannot be read; measured again" in note for note in record.notes)
    assert json.loads(path.read_text())["seconds"] == seconds


def test_a_cache_that_cannot_be_written_costs_only_the_next_measurement(clock, folder):
    folder.write_text("a file where the folder should be")
    clock(0.5)
    model = compiled()
    assert [record.chosen for record in model.plan.tuned] == [1, 1]
    assert any("measured times are not kept" in note for note in model._newest().cache_notes())


def test_the_ledger_has_predicted_and_measured_times_of_both(clock):
    clock(0.5)
    decision = next(d for d in compiled().plan.decisions if d.consumer == "c1")
    chosen, other = decision.timed[:2]
    assert (chosen.measured_s, other.measured_s) == (OWN_S / 2, OWN_S)
    assert chosen.predicted_s >= other.predicted_s > 0


def test_a_saved_model_runs_as_tuned_without_measuring(clock, tmp_path, monkeypatch):
    clock(0.5)
    model = compiled()
    model.save(tmp_path / "m.onepass")
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "other"))
    asked = clock(9.0)
    back = onepass.load(tmp_path / "m.onepass")
    assert not asked and [record.misses for record in back.specializations] == [0]
    assert back.plan.tuned == model.plan.tuned


def test_exact_leaves_nothing_to_tune(clock):
    asked = clock(0.5)
    plan = compiled(exact=True).plan
    assert not asked and plan.tuned == () and "no region" in tuning_sentence(plan.tuned)


def test_regret_is_what_the_cost_models_choices_cost_more():
    def record(chosen, *seconds):
        return Tuned("r", frozenset(), tuple(Timed("way", 1.0, s) for s in seconds), chosen)

    tuned = [record(0, 2.0, 3.0), record(2, 3.0, 9.0, 2.0)]
    assert regret(tuned) == pytest.approx(0.25) and regret(tuned[:1]) == regret([]) == 0
    assert tuning_json(tuned)["otherwise"] == 1
    assert "2 regions" in tuning_sentence(tuned) and "25 %" in tuning_sentence(tuned)


def test_ways_that_change_other_regions_are_compared_with_them():
    def plan(*regions):
        named = [[SimpleNamespace(name=name) for name in region] for region in regions]
        return SimpleNamespace(regions=[SimpleNamespace(id=at, nodes=n) for at, n in enumerate(named)])

    plans = plan("ab", "c", "de"), plan("a", "bc", "de")
    area = tune._area(plans, frozenset("a"))
    assert area == frozenset("abc")
    assert [tune._seconds(each, {0: 1.0, 1: 2.0, 2: 4.0}, area) for each in plans] == [3.0, 3.0]


def test_in_turns_alternates_and_gives_the_least_time_of_each_region(monkeypatch):
    order = []

    class Program:
        def __init__(self, name, seconds):
            self.name, self.seconds = name, iter(seconds)

        def trace(self, arrays, runs):
            order.append(self.name)
            seconds = next(self.seconds)
            return replace(empty, launches=(replace(launch, min_s=0.0, median_s=seconds),))

    empty = Trace((), 1.0, 1.0, 1, 1)
    launch = LaunchTime(7, "k", 1.0, 1.0)
    programs = Program("a", [3.0, 1.0, 2.0]), Program("b", [4.0, 6.0, 5.0])
    assert tune.in_turns(programs, []) == [{7: 1.0}, {7: 4.0}] and order == list("ababab")


def test_the_command_line_tells(clock, tmp_path, monkeypatch):
    clock(0.5)
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(convolutions().SerializeToString())

    def run(*words):
        result = CliRunner().invoke(app, [*words, "--tune"])
        assert result.exit_code == 0, result.stderr
        return result

    told = run("why", "m.onnx", "c0", "r0")
    assert "timing other ways to run 2 regions" in told.stderr
    assert "measured 500 µs as" in told.stdout and "against 1.00 ms as" in told.stdout
    data = json.loads(run("why", "m.onnx", "c0", "r0", "--json").stdout)
    assert data["decisions"][0]["timed"][0]["measured_s"] == OWN_S / 2
    assert "would have decided otherwise in 2" in run("optimize", "m.onnx").stdout
    tuning = json.loads(run("optimize", "m.onnx", "--json").stdout)["tuning"]
    assert tuning["regret"] == pytest.approx(1.0) and len(tuning["regions"]) == 2
