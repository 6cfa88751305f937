"""Charts are well-formed, proportional, and say in words what they show."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from tests.benchmarks.charts import LONGEST, WIDTH, Bar, Chart, svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*bars: Bar, name: str = "waits", title: str = "Waits, ms", heading: str = "8 threads") -> ElementTree.Element:
    return ElementTree.fromstring(svg(Chart(name, title, {heading: list(bars)})))


def widths(root: ElementTree.Element) -> list[float]:
    return [float(rect.attrib["width"]) for rect in root.iter(f"{SVG}rect")]


def test_bars_are_proportional_and_the_longest_fills_its_place():
    assert widths(drawn(Bar(10, "10"), Bar(40, "40"), Bar(1, "1"))) == [LONGEST / 4, LONGEST, LONGEST / 40]


def test_bars_of_all_groups_have_one_scale():
    chart = Chart("waits", "Waits", {"threads": [Bar(5, "5")], "processes": [Bar(20, "20")]})
    assert widths(ElementTree.fromstring(svg(chart))) == [LONGEST / 4, LONGEST]


def test_the_pale_part_stands_behind_the_full_one_and_reaches_further():
    root = drawn(Bar(10, "10; 40", further=40))
    pale, full = root.iter(f"{SVG}rect")
    assert (float(pale.attrib["width"]), float(full.attrib["width"])) == (LONGEST, LONGEST / 4)
    assert "fill-opacity" in pale.attrib
    assert "fill-opacity" not in full.attrib


@pytest.mark.parametrize("value", [math.nan, math.inf, 0])
def test_what_is_no_number_has_no_bar_and_spoils_no_other(value):
    assert widths(drawn(Bar(value, "none"), Bar(2, "2"))) == [0, LONGEST]
    assert widths(drawn(Bar(value, "none"))) == [0]


def test_values_and_labels_are_shown_and_told_to_those_who_do_not_see():
    root = drawn(Bar(10, "10.5 <ms>", label="ours & theirs"))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == ["Waits, ms", "8 threads", "ours & theirs", "10.5 <ms>"]
    told = {part.attrib["id"]: part.text for part in root if part.tag in (f"{SVG}title", f"{SVG}desc")}
    assert list(told) == root.attrib["aria-labelledby"].split()
    assert list(told.values()) == ["Waits, ms", "8 threads: ours & theirs 10.5 <ms>."]


def test_ids_are_those_of_the_chart_so_that_a_page_may_have_several():
    assert drawn(name="one").attrib["aria-labelledby"] != drawn(name="two").attrib["aria-labelledby"]


def test_all_is_inside_the_drawing_and_in_colours_of_the_page():
    text = svg(Chart("waits", "Waits", {"threads": [Bar(5, "5"), Bar(6, "6", ours=True)]}))
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert width == WIDTH
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) < width
        assert float(rect.attrib["y"]) + float(rect.attrib["height"]) <= height
    assert len({rect.attrib["fill"] for rect in root.iter(f"{SVG}rect")}) == 2
    assert all("var(--md-default-fg-color" in part.attrib["fill"] for part in root.iter(f"{SVG}text"))
    # Markdown would end the drawing at an empty line.
    assert "\n\n" not in text
