"""What the benchmarks read from RocketMQ's programs and write into the documentation."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.growth import growth_table
from benchmarks.latency import latency_table
from benchmarks.load import load_table, summary
from benchmarks.peer import parse_line
from benchmarks.report import BEGIN, END, PAGE, PageError, charts, measured, replace_measured
from benchmarks.results import Json, spread


def test_a_line_of_the_java_producer_is_read() -> None:
    line = (
        "Current Time: 2024-03-01 10:11:12,300 | Send TPS: 1451 | Max RT(ms): 1330 | Average RT(ms):  11.016 "
        "| Send Failed: 0 | Response Failed: 2"
    )
    figures = parse_line(line)
    assert {name: figures[name] for name in ("Send TPS", "Average RT(ms)", "Response Failed")} == {
        "Send TPS": 1451.0,
        "Average RT(ms)": 11.016,
        "Response Failed": 2.0,
    }
    assert "Current Time" not in figures


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = replace_measured(page, "new")
    assert once == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert replace_measured(once, "new") == once


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"])
def test_a_page_without_proper_markers_is_left_alone(page: str) -> None:
    with pytest.raises(PageError):
        replace_measured(page, "new")


def test_the_real_page_has_its_markers() -> None:
    replace_measured(PAGE.read_text(encoding="utf-8"), "new")


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(PageError, match="no results yet"):
        measured({})


def test_medians_ratio_and_spread() -> None:
    assert spread([3, 1, 8]).median == 3
    measurements = [measurement("kappamq", rate) for rate in (100, 300, 200)]
    measurements += [measurement("rocketmq", 50, refusals="refused {'2': 1}")]
    ours = summary(measurements, "async", "send", "kappamq")
    assert ours is not None
    assert (ours["rate"], ours["rate_low"], ours["rate_high"], ours["rate_spread_percent"]) == (200, 100, 300, 50)
    row = load_table(measurements, "async").splitlines()[2]
    assert [cell.strip() for cell in row.split("|")][1:5] == ["send", "200 ±50 %", "50 ±0 % !", "4.00"]
    assert summary(measurements, "durable", "send", "kappamq") is None


def test_growth_is_compared_with_the_first_size() -> None:
    rows = [
        {"size": size, "rate": rate, "p50": 1.0, "p99": 2.0, "p99_9": 3.0, "private_mb": 40.0}
        for size, rate in (("1 topics", 200.0), ("100 topics", 150.0))
    ]
    line = growth_table("topics", rows).splitlines()[3]
    assert [cell.strip() for cell in line.split("|")][1:4] == ["100 topics", "150", "0.75"]


def test_latency_has_a_row_per_rate_and_broker() -> None:
    figures = {"answered": 999.0, "unanswered": 2, "p50": 10.0, "p99": 20.0, "p99_9": 30.0, "max": 40.0}
    measurements = [
        {"flush": "durable", "broker": broker, "rate": 1000, **figures} for broker in ("kappamq", "rocketmq")
    ]
    lines = latency_table(measurements, "durable").splitlines()[2:]
    assert [line.split("|")[2].strip() for line in lines] == ["kappamq", "rocketmq"]
    assert lines[0].split("|")[-2].strip() == "2"


def test_charts_show_both_brokers_and_escape_names() -> None:
    measurements = [measurement("kappamq", 2e6) | {"load": "a < b"}, measurement("rocketmq", 5e5) | {"load": "a < b"}]
    drawing = charts({"load": {"measurements": measurements}})["load-async"]
    assert "a &lt; b" in drawing
    assert "2.00 M /s" in drawing
    assert "500 k /s" in drawing
    ElementTree.fromstring(drawing)


def measurement(broker: str, rate: float, *, refusals: str = "") -> Json:
    return {
        "broker": broker,
        "flush": "async",
        "load": "send",
        "cpu_per_million": 1.0,
        "resident_mb": 1.0,
        "private_mb": 1.0,
        "faults": [],
        "refusals": refusals,
        "result": {"rate": rate, "latency_us": {"p50": 1.0, "p99": 2.0, "p99_9": 3.0}},
    }
