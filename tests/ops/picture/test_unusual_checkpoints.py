"""The pages of checkpoints that are unlike most: long names, many experts, zeros, NaN."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import zerotools
from harness.browser import started_browser
from tests.ops.picture.test_html_page import opened

LONG = "_".join(["a_module_that_a_program_named"] * 8)
NOTHING_CUT = """() => [...document.querySelectorAll("svg text")].filter((each) => {
    const box = each.getBBox(), room = each.ownerSVGElement.clientWidth;
    return box.x < 0 || box.x + box.width > room + 0.5;
}).map((each) => each.textContent)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as found:
        yield found


def saved(path: Path, **layers: Any) -> Path:
    """Write a model of safetensors, in which `weight` of each layer has the given value."""
    weights = {
        f"layers.{n}.{kind}.weight": np.full((8, 8), value, np.float32)
        for kind, values in layers.items()
        for n, value in enumerate(values)
    }
    save_file(weights, path)
    return path


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1440])
def test_long_names_stay_in_the_window(browser: Any, tmp_path: Path, width: int) -> None:
    model = saved(tmp_path / "a.safetensors", **{LONG: range(4), "q": range(4)})
    reports: list[Any] = [
        zerotools.inspect(model, stats=True),
        zerotools.diff(model, model, changes=True),
    ]
    for report in reports:
        with opened(browser, tmp_path / "page.html", report.to_html(), width) as page:
            assert page.evaluate(NOTHING_CUT) == []
    with opened(browser, tmp_path / "page.html", reports[0].to_html(), width) as page:
        names = page.locator("#map span")
        wider = "(all) => all.filter((each) => each.offsetWidth > each.parentElement.clientWidth)"
        assert names.count() == 8
        assert names.evaluate_all(f"{wider}.length") == 0
        assert names.first.evaluate("(each) => getComputedStyle(each).textOverflow") == "ellipsis"
    with opened(browser, tmp_path / "page.html", reports[1].to_html(), width) as page:
        box = page.locator("#tensors tbody td:last-child").first.bounding_box()
        assert box["x"] + box["width"] <= width


@pytest.mark.browser
def test_the_page_ends_with_its_last_section(browser: Any, tmp_path: Path) -> None:
    model = saved(tmp_path / "a.safetensors", q=range(4))
    with opened(browser, tmp_path / "page.html", zerotools.inspect(model).to_html()) as page:
        below = "document.documentElement.scrollHeight - document.querySelector('main')"
        assert page.evaluate(f"{below}.getBoundingClientRect().bottom - scrollY") < 2


@pytest.mark.browser
def test_layers_of_one_size_are_divided_alike(browser: Any, tmp_path: Path) -> None:
    """The experts of one layer do not take all tiles of the map; one layer alone shows them all."""
    experts = [f"layers.{n}.experts.{e}.w" for n in range(6) for e in range(256)]
    weights = {f"{name}.weight": np.ones((2, 2), np.float32) for name in experts}
    weights |= {f"layers.{n}.attention.weight": np.ones((32, 32), np.float32) for n in range(6)}
    save_file(weights, tmp_path / "a.safetensors")
    html = zerotools.inspect(tmp_path / "a.safetensors").to_html()
    with opened(browser, tmp_path / "page.html", html, 1440) as page:
        names = page.locator("#map button").all_text_contents()
        kinds = ("experts", "attention")
        assert sorted(names) == sorted(f"{n}.{kind}" for n in range(6) for kind in kinds)
        page.locator('#map [data-path="layers.3.experts"]').click()
        assert page.locator("#map button").count() == 256


@pytest.mark.browser
def test_a_map_of_very_many_modules_names_how_many_are_not_drawn(
    browser: Any, tmp_path: Path
) -> None:
    weights = {f"w{n}": np.ones(1 + n % 3, np.float32) for n in range(2100)}
    save_file(weights, tmp_path / "a.safetensors")
    html = zerotools.inspect(tmp_path / "a.safetensors").to_html()
    with opened(browser, tmp_path / "page.html", html, 1440) as page:
        assert page.locator("#map button").count() == 600
        assert page.locator("#map p").inner_text() == "1,500 smaller ones"
        assert page.locator("#tree [role=treeitem]").count() == 2000
        assert page.locator("#tree p").inner_text().startswith("and 101 more; find")


@pytest.mark.browser
def test_zeros_and_nan_have_a_ring_and_no_line(browser: Any, tmp_path: Path) -> None:
    nan = float("nan")
    model = saved(tmp_path / "a.safetensors", q=[1, 1, 0, 1, 1, 1, nan, 1], up=[0] * 8)
    with opened(
        browser, tmp_path / "page.html", zerotools.inspect(model, stats=True).to_html(), 1440
    ) as page:
        verdict = page.locator("#verdict")
        assert verdict.inner_text().endswith("; NaN or infinite values in 1 tensor")
        assert verdict.get_attribute("class").split() == ["doubt", "whole"]
        chart = page.locator("#norms svg")
        assert chart.locator(".ring").count() == 2
        assert chart.locator(".line").get_attribute("d").count("M") == 3
        assert chart.locator("circle:not(.ring)").count() == 6
        heat = page.locator("#heat svg")
        heat.focus()
        said = []
        for key in ("ArrowDown", *["ArrowRight"] * 6, "ArrowDown"):
            page.keyboard.press(key)
            said.append(page.locator("#tip").inner_text())
        assert said[6] == "layers.6.q.weight: no finite value"
        assert said[-1] == "layers.6.up.weight: 0"
        page.keyboard.press("Enter")
        ((label),) = page.locator("#detail figure .tick").all_text_contents()
        assert label == "0"
    every = saved(tmp_path / "b.safetensors", q=[0, 0, nan])
    html = zerotools.inspect(every, stats=True).to_html()
    with opened(browser, tmp_path / "page.html", html) as page:
        assert "every value is 0 or not a number" in page.locator("#norms").inner_text()


@pytest.mark.browser
def test_models_without_a_common_name_are_not_called_unchanged(
    browser: Any, tmp_path: Path
) -> None:
    a, b = (saved(tmp_path / f"{n}.safetensors", **{n: range(12)}) for n in ("a", "b"))
    html = zerotools.diff(a, b, changes=True).to_html()
    with opened(browser, tmp_path / "page.html", html) as page:
        page.set_viewport_size({"width": 600, "height": 700})
        page.evaluate("new Promise(requestAnimationFrame)")
        assert page.locator("#verdict").inner_text() == "different models"
        assert page.get_by_text("No tensor was compared.").count() == 2
        assert not page.locator("#tensors-section").is_visible()
        layers = [each.split(".")[1] for each in page.locator("#only li").all_inner_texts()]
        assert layers == [str(n) for n in range(12)] * 2


@pytest.mark.browser
def test_a_layer_that_is_not_compared_completely_has_a_ring(browser: Any, tmp_path: Path) -> None:
    whole = {"q": range(1, 5), "up": range(1, 5)}
    paths = [saved(tmp_path / f"{n}.safetensors", **whole) for n in range(2)]
    paths.append(saved(tmp_path / "less.safetensors", q=range(1, 5), up=range(1, 4)))
    html = zerotools.diff_series(paths).to_html()
    with opened(browser, tmp_path / "page.html", html) as page:
        assert page.locator("#heat .ring").count() == 1
        assert "A ring marks a layer" in page.locator("#changes-note").inner_text()
        page.locator("#heat svg").focus()
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown"):
            page.keyboard.press(key)
        said = page.locator("#tip").inner_text()
        assert said.startswith("layers.3, ")
        assert said.endswith("; not all tensors were compared")
