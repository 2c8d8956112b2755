"""The shipped table carries a source for each figure, families stay apart, and the chart holds them all."""

import math
import xml.etree.ElementTree as ET

import pytest

from onepass.cost.machine import Machine, Roof
from onepass.wall.chart import TITLES, wall_svg
from onepass.wall.table import (
    FAMILIES,
    Device,
    Figure,
    growth_per_two_years,
    load_devices,
    place_machine,
)

MACHINE = Machine(
    "test cpu", "avx2", 256, 16, 2, 32768, 1 << 20, 32 << 20,
    (Roof("float32 fma", 200e9, "flop/s", 2, "loop", "2026-03-01"),
     Roof("memory", 10e9, "byte/s", 2, "stream", "2026-03-02")),
)


def device(year, peak, bandwidth, **fields):
    source = Figure(peak, "made up")
    return Device(**({"year": year, "vendor": "v", "name": f"d{year}", "kind": "cpu", "shipped": True,
                      "vector": source, "matrix": None, "matrix_dtype": "",
                      "bandwidth": Figure(bandwidth, "made up")} | fields))


def test_every_figure_has_a_source_and_none_is_from_memory():
    devices = load_devices()
    figures = [f for d in devices for f in (d.vector, d.matrix, d.bandwidth) if f]
    assert len(devices) > 60 and len(figures) > 120
    assert all(figure.source and figure.value > 0 for figure in figures)
    assert not any("recall" in figure.source for figure in figures)


def test_a_known_row_reads_in_base_units():
    h100 = next(d for d in load_devices() if d.name == "H100 SXM 80GB")
    values = [figure.value for figure in (h100.vector, h100.matrix, h100.bandwidth)]
    assert values == pytest.approx([66.9e12, 989e12, 3.35e12])
    assert h100.ridge_flops_per_byte("gpu matrix") == pytest.approx(295.2, abs=0.1)
    assert h100.ridge_flops_per_byte("cpu") is None


def test_growth_of_an_exact_exponential_is_found():
    devices = tuple(device(year, 1e9 * 2 ** (year - 2000), 1e9 * 2 ** ((year - 2000) / 2))
                    for year in range(2000, 2010))
    growth = growth_per_two_years(devices, "cpu")
    assert growth.peak_factor == pytest.approx(4) and growth.bandwidth_factor == pytest.approx(2)
    assert growth.ridge_factor == pytest.approx(2)
    assert growth.ridge_flops_per_byte(2004) == pytest.approx(4)


def test_only_the_best_of_a_year_and_only_shipped_devices_count():
    devices = (device(2000, 1.0, 1.0), device(2000, 0.1, 2.0), device(2002, 4.0, 2.0),
               device(2004, 1e9, 1e9, shipped=False), device(2004, 1e9, 1e9, kind="coprocessor"))
    growth = growth_per_two_years(devices, "cpu")
    assert (growth.years, growth.last_year) == (2, 2002)
    assert growth.peak_factor == pytest.approx(4) and growth.bandwidth_factor == pytest.approx(1)


def test_too_few_years_are_refused():
    with pytest.raises(ValueError, match="no two years"):
        growth_per_two_years((device(2000, 1.0, 1.0),), "cpu")


def test_peak_outgrew_bandwidth_in_every_family():
    assert all(growth_per_two_years(load_devices(), family).ridge_factor > 1 for family in FAMILIES)


def test_machine_is_placed_in_the_year_of_its_newest_measurement():
    placed = place_machine(MACHINE)
    assert placed.year == 2026
    assert math.isclose(placed.ridge_flops_per_byte("cpu"), 20.0)


@pytest.mark.parametrize("machine", [None, MACHINE])
def test_chart_is_well_formed_and_marks_the_machine(machine):
    svg = wall_svg(load_devices(), machine)
    text = " ".join(ET.fromstring(svg).itertext())
    assert all(title in text for title in TITLES.values())
    assert ("this machine, measured: 20" in text) == (machine is not None)
    assert "http://" not in svg.replace("http://www.w3.org/2000/svg", "")
