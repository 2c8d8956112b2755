"""The page and the plots as text: self-contained, escaped, and complete without a browser."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import synthetic

from onepass.report.diagnosis import diagnose
from onepass.report.html import report_html
from onepass.report.roofline_svg import roofline_svg
from onepass.report.timebar_svg import timebar_svg


def page(prefix: str = "") -> str:
    before, after = synthetic.small(prefix)
    traces = (synthetic.trace(before), None)
    return report_html(synthetic.outcome(before, after), before, after, traces, synthetic.machine())


def test_page_names_no_address_but_the_svg_namespace():
    assert set(re.findall(r"https?://[^\s\"'<]+", page())) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href)=\"(?!#|data:)", page())


def test_page_without_measurements_says_so():
    assert "Predicted seconds only" in page()
    assert "Times are predicted." in page()


def test_page_has_every_edge_and_kernel():
    after = synthetic.small()[1]
    text = page()
    assert text.count('<span class="home ') == len(after.decisions)
    for section in ("flow", "time", "roofline", "kernels", "ledger", "method"):
        assert f'<section id="{section}"' in text
    assert all(f"{roof.date}" in text for roof in synthetic.machine().roofs)


@pytest.mark.parametrize("make", [synthetic.three, synthetic.resnet50])
def test_plots_are_well_formed(make):
    before, after = make()
    machine = synthetic.machine()
    rows = [diagnose(plan, synthetic.trace(plan), machine, 2) for plan in (before, after)]
    plot = roofline_svg(rows[0], rows[1], machine, 2)
    dots = ElementTree.fromstring(plot).findall(".//{http://www.w3.org/2000/svg}circle[@stroke-width]")
    assert len(dots) >= len(rows[0]) + len(rows[1])
    assert "peak 226 Gflop/s" in plot
    ElementTree.fromstring(timebar_svg(before, after, synthetic.trace(before), None))


def test_roofline_leaves_out_what_does_no_arithmetic():
    assert "2 kernels without arithmetic" not in roofline_svg((), (), synthetic.machine(), 2)


def test_time_bar_sums_the_trace():
    before, after = synthetic.small()
    total = synthetic.trace(before).median_s * 1e3
    assert f"Before: {total:.2f} ms" in timebar_svg(before, after, synthetic.trace(before), None)
