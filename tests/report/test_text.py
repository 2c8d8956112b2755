"""Ledger, diagnosis, summary, outcome and number formats."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
import synthetic
from rich.console import Console

from onepass.core.errors import UserError
from onepass.cost.roofline import Traffic, estimate
from onepass.report import units
from onepass.report.diagnosis import (
    OTHER,
    SubnormalCost,
    diagnose,
    diagnosis_json,
    diagnosis_table,
    model_error,
    node_json,
    node_row,
    node_table,
    split_time,
)
from onepass.report.ledger import ledger_jsonl, why
from onepass.report.outcome import ErrorFigures, headline, outcome_json, summary, verdict
from onepass.report.terminal import Terminal, table


def shown(renderable, width=160) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return console.export_text()


@pytest.fixture(scope="module")
def plans():
    return synthetic.small()


def test_ledger_has_one_line_an_edge_with_stable_keys(plans):
    _, after = plans
    entries = [json.loads(line) for line in ledger_jsonl(after).splitlines()]
    assert len(entries) == len(after.decisions)
    keys = ["value", "producer", "consumer", "home", "reason", "detail", "value_bytes", "saved_bytes",
            "seconds", "alternative", "alternative_s", "timed", "fits"]  # fmt: skip
    assert all(list(entry) == keys for entry in entries)
    assert all(list(entry["saved_bytes"]) == ["l2", "l3", "memory"] for entry in entries)


@pytest.mark.parametrize(
    ("a", "b"),
    [("conv1", "bn1"), ("bn1", "conv1"), ("conv1_output_0", "bn1"), ("conv1", "conv1_output_0"),
     ("conv1_output_0", "bn1_output_0"), ("bn1_output_0", "conv1_output_0")],
)  # fmt: skip
def test_why_finds_the_edge_by_node_or_value_in_either_order(plans, a, b):
    answer = why(plans[1], a, b)
    start = "'conv1_output_0' (803 kB) from 'conv1' to 'bn1' stays in registers and saves 1.61 MB at l3"
    assert answer.startswith(start)
    assert "against" in answer
    assert "\n" not in answer


def test_why_at_the_borders_of_the_model(plans):
    assert "(an input of the model) to 'conv1'" in why(plans[1], "x", "conv1")
    assert "from 'relu2' out of the model" in why(plans[1], "relu2", "relu2_output_0")


def test_why_without_an_edge(plans):
    answer = "No edge joins 'conv1' and 'relu2'; edges join 'conv1' and 'bn1'."
    assert why(plans[1], "conv1", "relu2") == answer
    assert why(plans[1], "conv1", "relu1").endswith(" Both run in one kernel.")
    assert "No edge joins 'relu2' and 'conv1'" in why(plans[1], "relu2", "conv1")
    assert "weight" in why(plans[1], "conv1", "conv1.weight")
    assert "No edge" in why(plans[1], "conv1", "conv1")


def test_why_says_that_a_rule_forbade_the_alternative(plans):
    decisions = tuple(replace(d, alternative="register", alternative_s=None) for d in plans[0].decisions)
    assert "register is ruled out" in why(replace(plans[0], decisions=decisions), "conv1", "bn1")


def test_unknown_names_list_the_closest(plans):
    with pytest.raises(UserError, match="'conv1'") as caught:
        why(plans[1], "Conv1", "bn1")
    assert "closest" in caught.value.remedy
    with pytest.raises(UserError):
        node_row(plans[0], [], "nothing like it")


def test_vector_add_is_a_twelfth_of_an_operation_a_byte():
    before, _ = synthetic.small()
    row = next(r for r in diagnose(before, None, synthetic.machine(), 2) if r.node == "add")
    assert row.operations_per_byte == pytest.approx(1 / 12)
    assert row.bound == "l3"
    assert row.measured_s is None
    assert row.seconds == row.predicted_s


def test_diagnosis_shares(plans):
    before, _ = plans
    trace = synthetic.trace(before)
    rows = diagnose(before, trace, synthetic.machine(), 2)
    assert sum(row.share_of_total for row in rows) == pytest.approx(1)
    assert sum(row.seconds for row in rows) == pytest.approx(trace.median_s)
    for row in rows:
        assert 0 <= row.waiting_share + row.launch_share <= 1
        assert row.moved_bytes == sum(row.moved_bytes_at.values())
    memory_bound = [row for row in rows if row.bound != "compute"]
    assert all(0 < row.share_of_bandwidth < 1.3 for row in memory_bound)
    assert all(row.share_of_bandwidth is None for row in rows if row.bound == "compute")


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_split_adds_up_to_the_seconds(factor):
    priced = estimate(Traffic(10**6, 10**6, {"memory": 10**6}), synthetic.machine(), 2)
    split = split_time(priced, priced.seconds * factor)
    assert sum(split.values()) == pytest.approx(priced.seconds * factor)
    assert (split[OTHER] > 0) == (factor > 1)


def test_model_error_is_the_median(plans):
    before, _ = plans
    rows = diagnose(before, synthetic.trace(before), synthetic.machine(), 2)
    errors = sorted(abs(r.predicted_s - r.measured_s) / r.measured_s for r in rows)
    assert model_error(rows).median == errors[3]
    assert model_error(rows).worst == errors[-1]
    assert model_error(diagnose(before, None, synthetic.machine(), 2)) is None


def test_diagnosis_as_json_and_tables(plans):
    before, _ = plans
    rows = diagnose(before, synthetic.trace(before), synthetic.machine(), 2)
    assert json.loads(json.dumps(diagnosis_json(rows)))["ops"][0]["node"] == "conv1"
    table = shown(diagnosis_table(rows, limit=3), width=140)
    assert max(map(len, table.splitlines())) <= 140 and "bandwidth" in table
    assert "conv2" in table
    assert "and 4 cheaper ones" in table
    assert json.loads(json.dumps(node_json(before, rows, "bn1")))["decisions"][0]["producer"] == "conv1"
    assert "conv1 → bn1" in shown(node_table(before, rows, "bn1"))


def test_a_view_has_no_kernel():
    before, _ = synthetic.resnet50()
    rows = diagnose(before, None, synthetic.machine(), 2)
    with pytest.raises(UserError, match="no kernel"):
        node_row(before, rows, "/Flatten")


def test_markup_in_names_is_text(plans):
    before, _ = synthetic.small("[red]")
    rows = diagnose(before, None, synthetic.machine(), 2)
    assert "[red]conv1" in shown(diagnosis_table(rows))
    assert "[red]conv1" in shown(node_table(before, rows, "[red]conv1"))


def test_subnormal_numbers_are_told_with_their_places_and_their_price(plans):
    counts = {"w": (50, 100), "v": (60, 400), "u": (3, 9), "t": (1, 9)}
    told = synthetic.outcome(*plans)
    assert not any("ubnormal" in sentence for sentence in verdict(told))
    told = replace(told, subnormals=SubnormalCost(counts, {"relu": (2000, 4000)}, 0.2, 0.05))
    assert verdict(told)[-1] == (
        "Subnormal numbers, with which processors are slow: 114 in 4 weights (15 % of 'v', 50 % of 'w', "
        "33 % of 'u') and 2,000 in 1 output (50 % of 'relu'). With --allow flush_subnormals, which takes "
        "them for zero, the model needs 50.0 ms instead of 200 ms: 4.00 times as fast."
    )


def test_outcome_json_has_exactly_the_promised_keys(plans):
    data = json.loads(json.dumps(outcome_json(synthetic.outcome(*plans))))
    run = {"min_s", "median_s", "predicted_s", "kernels", "intermediate_bytes", "bytes"}
    assert set(data) == {"model", "machine", "threads", "unfused", "fused", "speedup",
                         "intermediate_bytes_cut", "error", "compile_s", "decisions", "cache",
                         "subnormals", "target", "dtype", "not_run"}  # fmt: skip
    assert set(data["unfused"]) == set(data["fused"]) == run
    assert set(data["fused"]["bytes"]) == {"l2", "l3", "memory"}
    assert set(data["error"]) == {"max_abs", "relative_l2", "unfused_relative_l2"}
    assert set(data["decisions"]) == {"register", "cache", "memory"}
    assert data["speedup"] == data["unfused"]["min_s"] / data["fused"]["min_s"]


def test_a_lowered_model_is_held_to_the_rounding_of_its_type(plans):
    outcome = synthetic.outcome(*plans)
    coarse = replace(outcome, error=ErrorFigures(0.1, 5e-3, 4e-3), target="cuda:sm_90")
    assert any("differ more than" in text for text in verdict(coarse))
    assert any("results agree" in text for text in verdict(replace(coarse, dtype="float16")))
    wrong = replace(coarse, dtype="float16", error=ErrorFigures(0.1, 0.5, 4e-3))
    assert any("differ more than" in text for text in verdict(wrong))


def test_verdict_tells_gain_loss_and_no_difference(plans):
    outcome = synthetic.outcome(*plans)
    slower = replace(outcome, fused=replace(outcome.fused, min_s=2 * outcome.unfused.min_s))
    equal = replace(outcome, fused=replace(outcome.fused, min_s=outcome.unfused.min_s))
    wrong = replace(outcome, error=ErrorFigures(3.0, 0.5, 1e-7))
    assert "as fast" in headline(outcome)
    assert "slower: 2.00 times" in headline(slower)
    assert "no difference" in headline(equal)
    assert "The results agree." in " ".join(verdict(outcome))
    assert "do not use this plan" in " ".join(verdict(wrong))


def test_summary_shows_table_and_verdict(plans):
    text = shown(summary(synthetic.outcome(*plans)))
    assert "10.4 MB" in text
    assert "Fusion makes this model" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.bytes_text(0), "0 B"), (units.bytes_text(999), "999 B"), (units.bytes_text(1000), "1.00 kB"),
        (units.bytes_text(3211264), "3.21 MB"), (units.bytes_text(999999), "1.00 MB"),
        (units.seconds_text(0.0123), "12.3 ms"), (units.seconds_text(4e-7), "400 ns"),
        (units.seconds_text(75), "75.0 s"), (units.share_text(0.634), "63 %"),
        (units.share_text(0.052), "5.2 %"),
        (units.share_text(0), "0 %"), (units.plural(1, "read"), "1 read"),
        (units.plural(2000, "read"), "2,000 reads"),
    ],
)  # fmt: skip
def test_numbers_read_well(text, expected):
    assert text == expected


def test_elide_keeps_within_width():
    name = "/layer1/layer1.0/downsample/downsample.1/BatchNormalization"
    short = units.elide(name, 11, 150)
    assert units.text_width(short, 11) <= 150
    assert short.endswith("Normalization")
    assert units.elide("conv", 11, 150) == "conv"
    assert units.elide("n" * 1_000_000, 11, 150) == units.elide("n" * 100, 11, 150)


@pytest.mark.parametrize("width", [20, 80, 300])
def test_a_table_is_never_cut(width):
    """On a narrow terminal its lines are longer than that, and the terminal wraps them."""
    numbers = [f"{k}.5 MB" for k in range(9)]
    screen = Terminal(file=io.StringIO(), width=width)
    screen.show(table(["node"], list("abcdefghi"), [["/features/0/Conv", *numbers]]))
    (line,) = [line for line in screen.file.getvalue().splitlines() if "/features" in line]
    assert line.split()[0] == "/features/0/Conv" and all(number in line for number in numbers)
