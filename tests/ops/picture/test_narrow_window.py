"""The page of a checkpoint in a window as narrow as a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import zerotools
from harness.browser import started_browser
from tests.golden_files import DEEPSPEED
from tests.ops.picture.opened_pages import deep_model, opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as found:
        yield found


@pytest.mark.browser
def test_a_narrow_window_has_the_bullet_of_an_outlier_before_its_name(
    browser: Any, tmp_path: Path
) -> None:
    model = deep_model(tmp_path / "model.safetensors", 20)
    html = zerotools.inspect(model, stats=True).to_html()
    with opened(browser, tmp_path / "page.html", html, 300) as page:
        item = page.locator("#outliers li")
        assert item.inner_text().startswith("model.layers.5.mlp.up_proj.weight (param): root mean")
        button = item.locator("button")
        assert button.bounding_box()["height"] > 30
        assert button.evaluate("(each) => getComputedStyle(each).verticalAlign") == "top"


@pytest.mark.browser
def test_a_narrow_window_shows_whole_names_of_files_above_their_strips(
    browser: Any, tmp_path: Path
) -> None:
    found = zerotools.inspect(DEEPSPEED / "z3-bf16-w4" / "checkpoint")
    with opened(browser, tmp_path / "page.html", found.to_html()) as page:
        rows = page.locator("#files tbody tr")
        assert rows.count() == len(found.files) == 8
        for place, name in enumerate(sorted(found.files)):
            cell = rows.nth(place).locator("td").first
            assert name in cell.inner_text()
            assert cell.evaluate("(each) => each.scrollWidth <= each.clientWidth")
            below = rows.nth(place).locator("canvas").bounding_box()["y"]
            box = cell.bounding_box()
            assert below >= box["y"] + box["height"]


@pytest.mark.browser
@pytest.mark.parametrize("table", ["#most", "#tensors", "#groups", "#detail table"])
def test_a_narrow_window_shows_all_figures_of_a_table(
    browser: Any, tmp_path: Path, table: str
) -> None:
    a, b = (DEEPSPEED / case / "checkpoint" for case in ("z3-bf16-w2", "z3-bf16-w4"))
    is_diff = table in ("#most", "#tensors")
    made = zerotools.diff(a, b, changes=True) if is_diff else zerotools.inspect(a, stats=True)
    with opened(browser, tmp_path / "page.html", made.to_html()) as page:
        if not is_diff:
            page.locator("#tree [role=treeitem]").first.click()
        row = page.locator(f"{table} tbody tr").first
        boxes = [cell.bounding_box() for cell in row.locator("td").all()]
        shown = [box for box in boxes if box is not None]
        assert len(shown) > 4
        assert max(box["x"] + box["width"] for box in shown) <= 390
        assert shown[-1]["y"] > shown[0]["y"]
        label = row.locator("td").last.evaluate(
            "(each) => getComputedStyle(each, '::before').content"
        )
        head = page.locator(f"{table} thead th").last.text_content()
        assert head in label
