"""The pictures of a page are read with keys alone, and with a finger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import zerotools
from harness.browser import started_browser
from tests.golden_files import JOB


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as found:
        yield found


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("picture") / "picture.html"
    path.write_text(zerotools.inspect(JOB, stats=True).to_html())
    return path


def tip(page: Any) -> str:
    return str(page.locator("#tip").inner_text())


@pytest.mark.browser
def test_keys_read_the_strips_of_files(browser: Any, picture: Path) -> None:
    page = browser.new_page()
    page.goto(picture.as_uri())
    strips = page.locator("#files canvas")
    stops = strips.evaluate_all("(all) => all.filter((each) => each.tabIndex === 0).length")
    assert stops == 1, "the key Tab leads to the first strip, and past all of them"
    strip = page.locator("#files tr", has_text="__0_0.distcp").locator("canvas")
    strip.focus()
    texts = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home"):
        page.keyboard.press(key)
        texts.append(tip(page))
    first, second, left, end, after_the_end, home = texts
    assert second != first == left == home
    assert end == after_the_end
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    page.keyboard.press("ArrowDown")
    assert page.locator("#files canvas:focus").get_attribute("aria-label") != (
        strip.get_attribute("aria-label")
    )
    page.keyboard.press("ArrowUp")
    assert strip.evaluate("(each) => each === document.activeElement")
    assert strip.evaluate("(each) => each.tabIndex") == 0
    while "in all" not in tip(page):
        page.keyboard.press("ArrowRight")
    name = tip(page).partition(" (")[0]
    page.keyboard.press("Enter")
    assert page.locator("#detail h2").inner_text() == name
    page.context.close()


@pytest.mark.browser
def test_a_finger_reads_a_strip(browser: Any, picture: Path) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 900}, has_touch=True)
    page = context.new_page()
    page.goto(picture.as_uri())
    strip = page.locator("#files canvas").first
    strip.scroll_into_view_if_needed()
    box = strip.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "in all" in tip(page) or "padding" in tip(page), "it stays when the finger is lifted"
    page.touchscreen.tap(box["x"] + 5, box["y"] - 120)
    assert page.locator("#tip").is_hidden()
    context.close()


@pytest.mark.browser
def test_the_map_is_one_stop_and_keeps_the_focus(browser: Any, picture: Path) -> None:
    page = browser.new_page()
    page.goto(picture.as_uri())
    tiles = page.locator("#map button")
    assert tiles.count() > 4
    assert tiles.evaluate_all("(all) => all.filter((each) => each.tabIndex === 0).length") == 1
    focused = "() => document.activeElement.dataset.path"
    tiles.first.focus()
    paths = {page.evaluate(focused)}
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
        paths.add(page.evaluate(focused))
    assert len(paths) > 2
    assert None not in paths
    page.keyboard.press("Enter")
    assert page.evaluate("document.getElementById('map').contains(document.activeElement)")
    page.locator("#path button").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.getElementById('path').contains(document.activeElement)")
    page.context.close()


@pytest.mark.browser
def test_keys_read_the_bars_of_a_histogram(browser: Any, picture: Path) -> None:
    page = browser.new_page()
    page.goto(picture.as_uri())
    page.get_by_label("find").fill("embed_tokens")
    page.locator("#tree [role=treeitem]", has_text="embed_tokens").first.click()
    page.locator("#detail figure svg").first.focus()
    page.keyboard.press("ArrowRight")
    first = tip(page)
    page.keyboard.press("End")
    assert " from " in tip(page)
    assert tip(page) != first
    page.context.close()
