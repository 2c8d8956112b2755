"""The data-flow picture: what is counted, what is folded, and that it is well-formed and complete."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import synthetic

from onepass.report import flow_rows as rows_module
from onepass.report.flow_rows import Block, Fold, flow_rows, rows_of
from onepass.report.flow_svg import before_after_svg
from onepass.report.flows import totals
from onepass.report.folding import Leaf, fold
from onepass.report.units import text_width


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_every_value_is_read_and_written_once_a_region():
    before, after = synthetic.three()
    size = 64 * 112 * 112 * 4
    was, now = totals(before), totals(after)
    assert (was.kernels, was.reads, was.writes) == (3, 5, 3)
    assert (now.kernels, now.reads, now.writes) == (1, 3, 1)
    assert (was.intermediate_bytes, now.intermediate_bytes) == (4 * size, 0)
    assert was.model_bytes == now.model_bytes == 2 * size
    assert was.weight_bytes == now.weight_bytes == 64 * 64 * 9 * 4 + 4 * 64 * 4


def test_a_residual_that_stays_live_is_still_written():
    _, after = synthetic.small()
    assert totals(after).intermediate_bytes == 2 * 64 * 56 * 56 * 4


def test_views_move_nothing():
    before, _ = synthetic.resnet50()
    assert totals(before).kernels == len(before.graph.nodes) - 1 == 174


def test_resnet50_folds_to_its_stages():
    parts = flow_rows(*synthetic.resnet50())
    stages = [part for part in parts if isinstance(part, Fold)]
    assert [stage.counts for stage in stages] == [(4,)]
    blocks = [part for part in stages[0].body if isinstance(part, Fold)]
    assert [block.counts for block in blocks] == [(2, 3, 5, 2)]
    assert len(rows_of(parts)) == 29
    assert sum(row.copies for row in rows_of(parts)) == 175


def test_folded_rows_keep_every_byte():
    before, after = synthetic.resnet50()
    rows = rows_of(flow_rows(before, after))
    for plan, side in ((before, "before"), (after, "after")):
        assert sum(lane.size_bytes for row in rows for lane in getattr(row, side)) == totals(plan).all_bytes


def test_a_last_block_that_writes_the_output_folds_with_the_others():
    b = synthetic.Builder()
    x = b.input("x", (1, 64, 28, 28))
    for i in range(4):
        x = b.relu(f"{i}/relu", b.conv(f"{i}/conv", b.relu(f"{i}/relu0", b.conv(f"{i}/conv0", x, 64, 1)), 64))
    before, after = synthetic.plans(b, b.graph("chain", ["x"], [x]))
    rows = rows_of(flow_rows(before, after))
    writes = [lane.kind for row in rows for lane in row.after if lane.is_write]
    assert [row.copies for row in rows] == [1, 1, 7, 7]
    assert sum(lane.size_bytes for row in rows for lane in row.after) == totals(after).all_bytes
    assert writes.count("model") == 1


@pytest.mark.parametrize(
    ("sequence", "shape"),
    [
        ("", ""), ("abc", "abc"), ("aab", "aab"), ("aaab", "(a)3b"), ("xababy", "x(ab)2y"),
        ("sdbcbcdbcbcbce", "s(d(bc)2+3)2e"),
    ],
)  # fmt: skip
def test_fold(sequence, shape):
    def show(parts):
        return "".join(
            part.signature if isinstance(part, Leaf)
            else f"({show(part.body)}){'+'.join(map(str, part.counts))}"
            for part in parts
        )  # fmt: skip

    def leaves(parts):
        return [leaf for p in parts for leaf in ([p] if isinstance(p, Leaf) else leaves(p.body))]

    parts = fold(sequence)
    assert show(parts) == shape
    assert sorted(i for leaf in leaves(parts) for i in leaf.items) == list(range(len(sequence)))


def test_a_recomputed_node_appears_again_after_but_not_before():
    before, after = synthetic.small()
    second = after.regions[1]
    twice = replace(second, nodes=(after.regions[0].nodes[-1], *second.nodes))
    rows = rows_of(flow_rows(before, replace(after, regions=(after.regions[0], twice))))
    assert [row.is_in_before for row in rows if row.name == "relu1"] == [True, False]


@pytest.mark.parametrize("make", [synthetic.three, synthetic.small, synthetic.gelu, synthetic.resnet50])
def test_picture_is_complete(make):
    before, after = make()
    written = texts(before_after_svg(before, after))
    was, now = totals(before), totals(after)
    assert f"{was.kernels} kernels · {was.reads} reads · {was.writes} writes" in written
    assert any(text.startswith(f"{now.kernels} kernel") for text in written)
    for node in {node.spelling for node in before.graph.nodes}:
        assert written.count(node) >= 2, node


def test_the_same_plan_twice_is_told_as_unfused():
    before, _ = synthetic.small()
    svg = before_after_svg(before, before)
    assert "small: nothing is fused" in texts(svg)
    assert not any("saved" in text for text in texts(svg))


def test_an_inner_value_shows_its_home():
    written = texts(before_after_svg(*synthetic.gelu()))
    assert "16.8 MB stays in cache" in written
    assert "16.8 MB stays in registers" in written


def test_texts_do_not_overlap():
    """Boxes of all level texts, by the cautious width; only leaning ones are left out."""
    for make in (synthetic.three, synthetic.gelu, synthetic.resnet50):
        boxes = []
        for element in ElementTree.fromstring(before_after_svg(*make())).iter("{http://www.w3.org/2000/svg}text"):
            if element.get("transform") or not element.text:
                continue
            x, y, size = (float(element.get(key)) for key in ("x", "y", "font-size"))
            wide = text_width(element.text, size)
            x -= {"start": 0, "middle": wide / 2, "end": wide}[element.get("text-anchor")]
            boxes.append((x, y - 0.75 * size, x + wide, y + 0.2 * size, element.text))
        for i, a in enumerate(boxes):
            for b in boxes[i + 1 :]:
                apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                assert apart, (a[4], b[4])


def test_names_are_escaped():
    before, after = synthetic.small("<script>alert(1)</script>")
    svg = before_after_svg(before, after)
    ElementTree.fromstring(svg)
    assert "<script" not in svg


def test_pattern_of_names():
    assert rows_module._pattern(["layer1/0/conv", "layer2/0/conv"]) == "layer*/0/conv"
    assert rows_module._pattern(["a", "b"]) == "a …"
    assert re.fullmatch(r"\w+", rows_module._pattern(["same"]))


def test_block_without_saving_is_one_row():
    (block,) = flow_rows(*synthetic.three())
    assert isinstance(block, Block)
    assert block.is_fused
    assert block.saved_bytes == 4 * 64 * 112 * 112 * 4
