"""The machine in a real browser: colours over time, the curves of one GPU, who used them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.web.pages import ANNA, Served
from tests.daemon.http.web.visits import visiting

pytestmark = pytest.mark.browser

STEP, POINTS = 60, 60
PIXELS = """() => {
  const strip = document.querySelector(".heat-rows canvas");
  const row = strip.getContext("2d").getImageData(0, 0, strip.width, 1).data;
  return [strip.width, [...row].filter((_, index) => index % 4 === 3 && row[index]).length];
}"""

APART = """() => {
  const edges = (selector) =>
    [...document.querySelectorAll(selector)].map((each) => each.getBoundingClientRect());
  const [strip] = edges(".heat-rows canvas");
  const apart = ({ left, right }) => [left - strip.left, right - strip.right].map(Math.abs);
  return Math.max(...edges(".past .u-over").flatMap(apart));
}"""
LABELS = """() => {
  const strip = document.querySelector(".heat-rows canvas");
  return [...document.querySelectorAll(".heat-ticks span")].map((label) => {
    const { left, width } = label.getBoundingClientRect();
    const { top } = strip.getBoundingClientRect();
    const place = { bubbles: true, clientX: left + width / 2 + 1, clientY: top + 5 };
    strip.dispatchEvent(new PointerEvent("pointermove", place));
    return [label.textContent, document.querySelector(".heat-read").textContent];
  });
}"""
COLOURED = """(parts) => [...document.querySelectorAll(".past canvas")].map((canvas) => {
  const plot = canvas.parentElement.querySelector(".u-over").getBoundingClientRect();
  const edge = canvas.getBoundingClientRect();
  const rows = [plot.top - edge.top, plot.height].map((at) => Math.round(at * devicePixelRatio));
  const pen = canvas.getContext("2d");
  return parts.map((part) => {
    const x = Math.round((plot.left - edge.left + part * plot.width) * devicePixelRatio);
    const { data } = pen.getImageData(x, rows[0], 1, rows[1]);
    const at = Array.from({ length: rows[1] }, (_, y) => data.slice(4 * y, 4 * y + 3));
    return at.some((colour) => Math.max(...colour) - Math.min(...colour) > 60);
  });
})"""
"""Whether the plot of each chart has a coloured pixel at these parts of its width.

The grid is grey. Labels of the axes are outside the plot: smoothed text has coloured pixels.
"""
MINUTES_APART = """async () => {
  const point = (selector, ...events) => {
    const element = document.querySelector(selector);
    const { left, top, width } = element.getBoundingClientRect();
    const place = { bubbles: true, clientX: left + width / 4, clientY: top + 5 };
    for (const [Kind, type] of events) element.dispatchEvent(new Kind(type, place));
  };
  const minutes = (selector) => {
    const { textContent: text } = document.querySelector(selector);
    const [, hour, minute] = /(\\d\\d):(\\d\\d)/.exec(text);
    return 60 * Number(hour) + Number(minute);
  };
  point(".heat-rows canvas", [PointerEvent, "pointermove"]);
  point(".past .u-over", [MouseEvent, "mouseenter"], [MouseEvent, "mousemove"]);
  await new Promise(requestAnimationFrame);
  const apart = minutes(".past .u-legend .u-value") - minutes(".heat-read");
  return ((apart + 2160) % 1440) - 720;  // midnight may be between them
}"""


def midday_zone() -> str:
    """Return the time zone where it is noon now, so that midnight is on no axis of a test."""
    hours = 12 - time.gmtime().tm_hour
    return f"Etc/GMT{-hours:+d}"  # POSIX counts hours west of Greenwich


def past_of(values: dict[str, float]) -> dict[str, Any]:
    """An hour of history in which each series had one value until half of it, and no gap after."""
    end = int(time.time()) // STEP * STEP
    times = [end - STEP * (POINTS - 1 - number) for number in range(POINTS)]
    columns = {
        name: [
            value if number < POINTS / 2 or name.startswith("gpu") else None
            for number in range(POINTS)
        ]
        for name, value in values.items()
    }
    series = {name: {"mean": column, "most": column} for name, column in columns.items()}
    return {"step_seconds": STEP, "times": times, "series": series, "trouble": None}


def test_nothing_is_drawn_where_nothing_was_kept(
    browser: Any, page: Served, service: FakeService
) -> None:
    service.add(uid=ANNA, name="tiny")
    past = past_of(
        {
            "gpu.GPU-fake-0.utilization_percent": 90.0,
            "gpu.GPU-fake-0.memory_used_bytes": 60.0 * 2**30,
            "gpu.GPU-fake-0.temperature_celsius": 70.0,
        }
    )
    memory = past["series"]["gpu.GPU-fake-0.memory_used_bytes"]
    past["series"]["job.1.gpu.GPU-fake-0.memory_used_bytes"] = dict(memory)
    kept = [*range(20), *range(40, POINTS)]
    past["times"] = [past["times"][number] for number in kept]
    for column in past["series"].values():
        column["mean"] = column["most"] = [column["mean"][number] for number in kept]
    service.past = past
    with visiting(browser, page, viewport={"width": 1280, "height": 2000}) as visit:
        visit.show("#/machine/0")
        visit.wait_for_text("#opened", "GPU 0")
        visit.wait_for_text(".past", "Temperature")
        drawn = visit.page.evaluate(COLOURED, [0.1, 0.5, 0.9])
        assert drawn == [[True, False, True]] * 3


@pytest.mark.parametrize("gpus", [16, 17])
def test_the_map_is_in_sight_where_there_are_many_gpus(
    browser: Any, page: Served, service: FakeService, gpus: int
) -> None:
    service.gpus = gpus
    service.past = past_of({"gpu.GPU-fake-0.utilization_percent": 90.0})
    with visiting(browser, page) as visit:
        visit.show("#/machine")
        visit.wait_for_text(".heat-rows", "GPU 0")
        shown = visit.page.locator(".heat-rows, .gpus > section:first-child")
        classes = [str(each.get_attribute("class")) for each in shown.all()]
        assert ("heat-rows" in classes[0]) == (gpus > 16)


def test_gpus_over_time_and_one_of_them(browser: Any, page: Served, service: FakeService) -> None:
    service.add(uid=ANNA, name="tiny")
    service.past = past_of(
        {
            "gpu.GPU-fake-0.utilization_percent": 90.0,
            "gpu.GPU-fake-0.memory_used_bytes": 60.0 * 2**30,
            "gpu.GPU-fake-1.utilization_percent": 5.0,
            "job.1.gpu.GPU-fake-0.memory_used_bytes": 50.0 * 2**30,
            "host.cpu_percent": 20.0,
        }
    )
    with visiting(browser, page, timezone_id=midday_zone()) as visit:
        visit.page.keyboard.press("2")
        visit.wait_for_text(".heat-rows", "GPU 1")
        assert visit.page.locator(".heat-rows a").all_inner_texts() == [
            "GPU 0\n90 %",
            "GPU 1\n5 %",
            "Host\n20 %",
        ]
        columns, drawn = visit.page.evaluate(PIXELS)
        assert columns in (POINTS, POINTS + 1)
        assert drawn in (POINTS - 1, POINTS)
        visit.page.keyboard.press("j")
        visit.page.keyboard.press("Enter")
        visit.wait_for_text("#opened", "GPU 0")
        visit.page.get_by_label("Memory", exact=True).check()
        visit.wait_for_text(".heat-rows", "60.0 GiB")
        label = visit.page.locator("section[aria-labelledby=opened] .chart").first
        assert "#1 tiny: at most 50.0 GiB" in str(label.get_attribute("aria-label"))
        assert visit.page.evaluate(APART) < 1.5, "pixels between strips and curves"
        assert abs(visit.page.evaluate(MINUTES_APART)) <= 1
        for label, pointed in visit.page.evaluate(LABELS):
            assert f", {label}" in pointed, "a label stands below its time"
        hours = visit.page.locator(".use tbody tr").all_inner_texts()
        assert [each.split()[-1] for each in hours] == ["0.5"]
        visit.page.keyboard.press("Escape")
        visit.page.wait_for_function("() => location.hash === '#/machine'")
        visit.page.wait_for_selector("#opened", state="hidden")
