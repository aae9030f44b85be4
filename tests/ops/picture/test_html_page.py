"""The page of a checkpoint: one file, in which names stay text, as a browser shows it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import zerotools
from harness.browser import SERIOUS, script_of_axe, started_browser
from tests.cli.command_process import zerotools as command
from tests.golden_files import DEEPSPEED, JOB
from tests.ops.picture.opened_pages import deep_model, opened
from zerotools.core.errors import BadRequest
from zerotools.ops.picture.html_page import MARK, page_of, write_page

HOSTILE = (
    "</script><script>document.title='run'</script><img src=x onerror=alert(1)>\u2028@@STYLE@@"
)


def hostile_page() -> str:
    contents = json.loads(values_of(zerotools.inspect(JOB).to_html()))
    contents["title"] = HOSTILE
    contents["tensors"][0][0] = HOSTILE
    contents["files"][0][0] = HOSTILE
    contents["facts"].append([HOSTILE, HOSTILE])
    contents["notes"].append(HOSTILE)
    return page_of(contents)


def values_of(page: str) -> str:
    (found,) = re.findall(r'<script type="application/json" id="values">(.*?)</script>', page, re.S)
    return str(found)


def test_the_page_is_small_and_asks_for_nothing() -> None:
    page = zerotools.inspect(JOB).to_html()
    values = json.loads(values_of(page))
    assert values["title"].endswith("step-00000003")
    assert len(page) - len(values_of(page)) < 64 << 10
    assert re.findall(r"(?:src|href)\s*=|https?://|@import|url\(|fetch\(|import\(", page) == []
    assert "default-src 'none'" in page


def test_names_are_text() -> None:
    page = hostile_page()
    assert page.count("<script") == 2
    assert "<img" not in page
    assert json.loads(values_of(page))["title"] == HOSTILE


def test_a_page_replaces_a_page_and_nothing_else(tmp_path: Path) -> None:
    path, other = tmp_path / "a.html", tmp_path / "notes.html"
    for text in ("one", "two"):
        write_page(path, f"<!doctype html>\n{MARK}\n{text}")
        assert path.read_text().endswith(text)
    other.write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    for place, reason in (
        (other, "exists, and zerotools did not write it as a page; choose another name"),
        (tmp_path / "pipe", "exists, and zerotools did not write it as a page"),
        (tmp_path, "is not the name of a file; choose one, such as page.html"),
        (Path("-"), "--html - is not the name of a file"),
        (tmp_path / "none" / "a.html", "does not exist; make it"),
    ):
        with pytest.raises(BadRequest, match=reason):
            write_page(place, "")
    assert other.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.html", "notes.html", "pipe"]


def test_the_command_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "picture.html"
    done = command("inspect", JOB, "--html", path)
    assert done.returncode == 0
    told = rf"page: {path} \([\d.]+ KiB\); open it in a browser"
    assert re.fullmatch(told, done.stdout.splitlines()[-1])
    assert MARK in path.read_text()
    refused = command("inspect", JOB, "--html", JOB / "job.json")
    assert refused.returncode == 2
    assert "zerotools did not write it as a page" in refused.stderr


def test_with_tensors_the_command_prints_them_too(tmp_path: Path) -> None:
    path = tmp_path / "picture.html"
    alone = command("inspect", JOB, "--tensors").stdout
    assert command("inspect", JOB, "--tensors", "--html", path).stdout.startswith(f"{alone}page: ")


def test_with_statistics_the_page_and_the_text_have_the_same_figures(tmp_path: Path) -> None:
    path = tmp_path / "picture.html"
    done = command("inspect", JOB, "--stats", "--html", path)
    assert done.returncode == 0
    values = json.loads(values_of(path.read_text()))
    shown = values["statistics"]["tensors"]
    assert ["outliers", "0"] in values["facts"]
    told = json.loads(command("inspect", JOB, "--stats", "--json").stdout)["tensors"]
    assert len(shown) == len(told) == len(values["tensors"])
    for row, tensor in zip(shown, told, strict=True):
        assert row[:4] == [tensor["statistics"][name] for name in ("min", "max", "mean", "norm")]
    text = command("inspect", JOB, "--stats").stdout
    assert re.search(r"^ +-0.09132 +0.09007 .* param +model.embed_tokens.weight$", text, re.M)


def test_statistics_that_cannot_be_read_are_a_problem(tmp_path: Path) -> None:
    path, page = tmp_path / "run", tmp_path / "picture.html"
    shutil.copytree(JOB, path)
    (path / "dcp" / "__1_0.distcp").unlink()
    done = command("inspect", path, "--stats", "--html", page)
    assert done.returncode == 1
    values = json.loads(values_of(page.read_text()))
    assert None in values["statistics"]["tensors"]
    assert values["problem_count"] > 0


def test_a_path_that_is_not_utf_8_is_escaped(tmp_path: Path) -> None:
    odd, path = tmp_path / os.fsdecode(b"run-\xff"), tmp_path / "picture.html"
    shutil.copytree(JOB, odd)
    assert command("inspect", odd, "--html", path).returncode == 0
    page = path.read_text("utf-8")
    assert "run-\\udcff</title>" in page
    assert json.loads(values_of(page))["title"] == str(odd)


def test_a_page_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_page(tmp_path / "a.html", "")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as found:
        yield found


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_a_browser_draws_it(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    path = tmp_path / "picture.html"
    path.write_text(zerotools.inspect(JOB).to_html())
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    errors = list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.locator("#map button").count() > 4
    page.get_by_label("find").fill("q_proj")
    tree = page.locator("#tree [role=treeitem]")
    assert tree.filter(has_text="q_proj").count() > 0
    assert tree.filter(has_text="down_proj").count() == 0
    page.get_by_label("find").fill("")
    tree.first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    chosen = page.locator("#tree [aria-selected=true] .name").inner_text()
    assert page.locator("#detail h2").inner_text().endswith(chosen.strip("▸▾ "))
    page.get_by_label("colour").select_option("role")
    assert "exp_avg" in page.locator("#legend").inner_text()
    assert page.locator("#files canvas").count() == len(zerotools.inspect(JOB).files)
    assert errors == []
    context.close()


@pytest.mark.browser
def test_a_browser_draws_statistics(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "picture.html"
    contents = json.loads(values_of(zerotools.inspect(JOB, stats=True).to_html()))
    layers = [f"model.layers.{n}" for n in range(4)]
    contents["statistics"]["layers"] = layers
    contents["statistics"]["outliers"] = [[0, "root mean square 9, 9 times the median"]]
    for number, row in enumerate(contents["statistics"]["tensors"]):
        row[7] = number % len(layers)
    path.write_text(page_of(contents))
    context = browser.new_context(viewport={"width": 390, "height": 900}, offline=True)
    page = context.new_page()
    errors = list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.locator("#norms svg").count() == 3
    assert page.locator("#norms .ring").count() == 1
    page.locator("#outliers button").click()
    assert page.locator("#detail figure").count() == 3
    assert "from one power of two to the next" in page.locator("#detail").inner_text()
    page.locator("#tree [role=treeitem]").first.click()
    assert page.locator("#detail figure").count() == 0
    assert "power of two" not in page.locator("#detail").inner_text()
    page.locator("#outliers button").click()
    assert "outlier: model.embed_tokens.weight" in page.locator("#detail").inner_text()
    page.locator("#heat svg").focus()
    page.keyboard.press("ArrowRight")
    assert "times the median" in page.locator("#tip").inner_text()
    page.keyboard.press("Enter")
    page.locator("#norms svg").first.focus()
    page.keyboard.press("ArrowRight")
    assert "model.layers.0: norm" in page.locator("#tip").inner_text()
    assert errors == []
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("paths", [(JOB, JOB), (JOB, JOB, JOB)], ids=["two", "three"])
def test_a_browser_draws_a_comparison(
    browser: Any, tmp_path: Path, paths: tuple[Path, ...]
) -> None:
    path = tmp_path / "page.html"
    contents = json.loads(values_of(zerotools.diff_series(paths).to_html()))
    for pair in contents["pairs"]:
        pair["changes"][1][2:] = [0.25, 0.9, 0.5]
        pair["only_b"] = [1, [HOSTILE]]
    path.write_text(page_of(contents, "diff"))
    context = browser.new_context(viewport={"width": 390, "height": 900}, offline=True)
    page = context.new_page()
    errors = list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.locator("#only li").inner_text().startswith("</script><script>")
    for measure in ("1 - cosine", "share of changed elements"):
        page.get_by_label("measure").select_option(measure)
    page.locator("#heat svg").focus()
    for key in ("ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert "relative norm" in page.locator("#tip").inner_text()
    page.keyboard.press("Enter")
    if len(paths) == 2:
        assert page.locator("#lines svg").count() > 0
        assert page.locator("#tensors tbody tr").count() > 0
    else:
        assert page.get_by_label("comparison").input_value() == "1"
    assert errors == []
    context.close()


@pytest.mark.browser
def test_the_tensors_that_changed_most_follow_the_chosen_role(browser: Any, tmp_path: Path) -> None:
    a, b = (DEEPSPEED / case / "checkpoint" for case in ("z3-bf16-w2", "z3-bf16-w4"))
    html = zerotools.diff(a, b, changes=True).to_html()
    with opened(browser, tmp_path / "page.html", html) as page:
        for role, number in (("param", 6), ("exp_avg", 5), ("param", 6)):
            if role != page.locator("#most-role").inner_text():
                page.get_by_label("role").select_option(role)
            assert page.locator("#most-role").inner_text() == role
            assert page.locator("#most tbody tr").count() == number


@pytest.mark.parametrize("option", ["--tensors", "--stats"])
def test_the_command_lists_layers_in_the_order_of_their_numbers(
    tmp_path: Path, option: str
) -> None:
    done = command("inspect", deep_model(tmp_path / "model.safetensors"), option)
    layers = [int(n) for n in re.findall(r"model\.layers\.(\d+)\.", done.stdout)]
    assert layers == sorted(layers)
    assert len(layers) == 36


@pytest.mark.browser
def test_the_tree_has_layers_in_the_order_of_their_numbers(browser: Any, tmp_path: Path) -> None:
    html = zerotools.inspect(deep_model(tmp_path / "model.safetensors")).to_html()
    with opened(browser, tmp_path / "page.html", html) as page:
        page.get_by_label("find").fill("q_proj")
        names = page.locator("#tree .name").all_inner_texts()
        layers = [name.strip("▾ ") for name in names]
        assert [each for each in layers if each.isdecimal()] == [str(n) for n in range(12)]


@pytest.mark.browser
def test_tiles_of_the_map_have_different_names(browser: Any, tmp_path: Path) -> None:
    html = zerotools.inspect(deep_model(tmp_path / "model.safetensors")).to_html()
    with opened(browser, tmp_path / "page.html", html, 1440) as page:
        names = [text for text in page.locator("#map button").all_text_contents() if text]
        assert len(names) == len(set(names)) > 12
        assert "5.up_proj" in names
        assert "embed_tokens" in names
    html = zerotools.inspect(DEEPSPEED / "z3-bf16-w4" / "checkpoint").to_html()
    with opened(browser, tmp_path / "page.html", html) as page:
        names = page.locator("#map button").all_text_contents()
        assert {"layer.weight", "layer.bias", "embed"} <= set(names)
        assert "layer" not in names


ADAPTER = DEEPSPEED / "z3-bf16-w3-adapter" / "checkpoint"
MARKED = """(path) => {
    const tile = document.querySelector(`#map [data-path="${path}"]`);
    const drawn = ["::before", "::after"].map((name) => getComputedStyle(tile, name));
    return drawn.map((style) => style.content !== "none" && style.backgroundImage !== "none");
}"""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_frozen_and_tied_weights_have_marks_and_words(
    browser: Any, tmp_path: Path, scheme: str
) -> None:
    html = zerotools.inspect(ADAPTER).to_html()
    with opened(browser, tmp_path / "page.html", html, 1440, scheme) as page:
        for path, marks, words in (
            ("lora_a.weight", [False, False], "lora_a.weight, 172 B, 14 parameters"),
            ("base.weight", [True, False], "base.weight, 266 B, 133 parameters, frozen"),
            ("embed.weight", [True, True], ", 88 parameters, frozen, tied to head.weight"),
        ):
            tile = page.locator(f'#map [data-path="{path}"]')
            assert page.evaluate(MARKED, path) == marks
            assert tile.get_attribute("aria-label").endswith(words)
        legend = page.locator("#legend")
        assert "striped: frozen, 3 of 5 weights" in legend.inner_text()
        assert "dotted: tied, 1 more name for the same bytes" in legend.inner_text()
        assert legend.locator(".mark").count() == 2
        rows = page.locator("#tree [role=treeitem]")
        assert rows.filter(has_text="embed").inner_text().split() == [
            *("▸", "embed", "frozen", "tied", "176", "B")
        ]
        assert "frozen" not in rows.filter(has_text="lora_a").inner_text()
        page.get_by_label("find").fill("head.w")
        assert rows.filter(has_text="weight").count() == 1, "found by its other name"
        rows.filter(has_text="weight").click()
        assert "param, frozen" in page.locator("#detail").inner_text()
        assert "tied: head.weight = embed.weight" in page.locator("#detail").inner_text()
        axe = script_of_axe()
        if axe is not None:
            page.evaluate(axe)
            assert page.evaluate(SERIOUS) == []


@pytest.mark.browser
def test_a_tile_has_the_mark_of_most_of_its_bytes(browser: Any, tmp_path: Path) -> None:
    contents = json.loads(values_of(zerotools.inspect(ADAPTER).to_html()))
    names = {"base.weight": "block.a", "base.bias": "block.b", "lora_a.weight": "block.c"}
    for tensor in contents["tensors"]:
        tensor[0] = names.get(tensor[0], tensor[0])
        tensor[5] = 1 << 30 if tensor[0].startswith("lora_b") else tensor[5]
    with opened(browser, tmp_path / "page.html", page_of(contents), 390) as page:
        tile = page.locator('#map [data-path="block"]')
        assert tile.get_attribute("class").split() == ["frozen"]
        assert tile.get_attribute("aria-label").endswith("2 of 3 weights frozen")


@pytest.mark.browser
def test_nothing_is_marked_that_the_checkpoint_does_not_record(
    browser: Any, tmp_path: Path
) -> None:
    html = zerotools.inspect(deep_model(tmp_path / "model.safetensors")).to_html()
    with opened(browser, tmp_path / "page.html", html, 1440) as page:
        assert page.locator(".frozen, .tied, .mark").count() == 0
        assert "frozen" not in page.locator("body").inner_text()
    html = zerotools.verify(ADAPTER).to_html()
    with opened(browser, tmp_path / "page.html", html, 1440) as page:
        assert page.locator(".frozen, .tied, .mark").count() == 0, "colours show damage alone"
        page.get_by_label("colour").select_option("role")
        assert page.locator("#map .frozen").count() == 3


@pytest.mark.browser
def test_hyperparameters_have_six_digits(browser: Any, tmp_path: Path) -> None:
    contents = json.loads(values_of(zerotools.inspect(JOB).to_html()))
    options = {"lr": 0.000259556240854677, "betas": [0.9, 0.95], "eps": 1e-8, "fused": None}
    contents["groups"][0]["options"] = options
    with opened(browser, tmp_path / "page.html", page_of(contents), 1440) as page:
        cells = page.locator("#groups tbody tr").first.locator("td").all_inner_texts()
        assert cells[2:6] == ["0.000259556", "[0.9,0.95]", "1e-8", "null"]


@pytest.mark.browser
@pytest.mark.parametrize("report", ["inspect", "verify"])
def test_the_head_names_a_file_of_another_save(browser: Any, tmp_path: Path, report: str) -> None:
    run = tmp_path / "run" / JOB.name
    shutil.copytree(JOB, run)
    make: Callable[[Path], Any] = zerotools.inspect if report == "inspect" else zerotools.verify
    old = run / "dcp" / "__1_0.distcp"
    colours = []
    for days in (0, 4):
        os.utime(old, (old.stat().st_mtime - days * 86400,) * 2)
        with opened(browser, tmp_path / "page.html", make(run).to_html()) as page:
            verdict = page.locator("#verdict")
            said = verdict.inner_text()
            colours.append(verdict.evaluate("(each) => getComputedStyle(each).color"))
            assert page.locator("#files tr.apart").count() == (days > 0)
        words = "__1_0.distcp was written 4.0 days before the other files"
        assert said.endswith(words) == (days > 0)
    assert colours[0] != colours[1]


@pytest.mark.browser
def test_the_head_of_a_series_is_not_red(browser: Any, tmp_path: Path) -> None:
    paths = [deep_model(tmp_path / f"{n}.safetensors", n + 1) for n in range(3)]
    html = zerotools.diff_series(paths).to_html()
    with opened(browser, tmp_path / "page.html", html, 1440) as page:
        verdict = page.locator("#verdict")
        assert verdict.inner_text() == "0 of 2 pairs of consecutive checkpoints are equal"
        colour = "(each) => getComputedStyle(each).color"
        assert verdict.evaluate(colour) == page.locator("body").evaluate(colour)


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1440])
def test_labels_of_charts_are_whole_or_end_with_an_ellipsis(
    browser: Any, tmp_path: Path, width: int
) -> None:
    model = deep_model(tmp_path / "model.safetensors", 20)
    contents = json.loads(values_of(zerotools.inspect(model, stats=True).to_html()))
    layers = contents["statistics"]["layers"]
    layers[layers.index("lm_head")] = "a_head_with_a_name_that_is_too_long"
    with opened(browser, tmp_path / "page.html", page_of(contents), width) as page:
        chart = page.locator("#norms svg")
        assert chart.locator(".end").count() > 1
        names = [text for text in chart.locator(".middle").all_text_contents() if "_" in text]
        assert names
        for name in names:
            assert name in ("embed_tokens", *layers) or name.endswith("…")
        cut = """() => [...document.querySelectorAll("svg text")].filter((each) => {
            const box = each.getBBox(), room = each.ownerSVGElement.clientWidth;
            return room && (box.x < 0 || box.x + box.width > room + 0.5);
        }).map((each) => each.textContent)"""
        assert page.evaluate(cut) == []


@pytest.mark.browser
def test_a_browser_draws_a_verification_and_the_loss(browser: Any, tmp_path: Path) -> None:
    path, run = tmp_path / "page.html", tmp_path / "run" / JOB.name
    shutil.copytree(JOB, run)
    lost = run / "dcp" / "__0_0.distcp"
    data = bytearray(lost.read_bytes())
    data[len(data) // 2] ^= 1
    lost.write_bytes(data)
    os.utime(lost, (lost.with_name("__1_0.distcp").stat().st_mtime - 4 * 86400,) * 2)
    steps = ({"step": step, "loss": 9 / step, "lr": 0.1} for step in range(1, 9))
    (run.parent / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in steps))
    path.write_text(zerotools.verify(run).to_html())
    context = browser.new_context(viewport={"width": 390, "height": 900}, offline=True)
    page = context.new_page()
    errors = list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.locator("#verdict").inner_text() == "DAMAGED"
    assert "damaged" in page.locator("#legend").inner_text()
    assert page.locator("#files .problem").first.inner_text().strip() == "✗"
    row = page.locator("#files tr", has_text="__0_0.distcp")
    assert row.inner_text().endswith("written 4.0 days before the other files")
    assert page.locator("#curves svg").count() == 2
    page.get_by_label("colour").select_option("role")
    page.locator("#map button").first.click()
    assert errors == []
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("report", ["inspect", "verify", "diff"])
def test_axe_finds_nothing_serious(browser: Any, tmp_path: Path, report: str, scheme: str) -> None:
    axe = script_of_axe()
    if axe is None:
        pytest.skip("./scripts/browser installs axe-core")
    made: dict[str, Callable[[], Any]] = {
        "inspect": lambda: zerotools.inspect(JOB, stats=True),
        "verify": lambda: zerotools.verify(JOB),
        "diff": lambda: zerotools.diff(JOB, JOB, changes=True),
    }
    contents = json.loads(values_of(made[report]().to_html()))
    if report != "diff":
        names = list(dict.fromkeys(tensor[0] for tensor in contents["tensors"]))
        for n, tensor in enumerate(contents["tensors"]):
            state = names.index(tensor[0]) % 3
            tensor[6] = state - 1
            if report == "verify":
                contents["checks"]["tensors"][n] = state
    path = tmp_path / "page.html"
    path.write_text(page_of(contents, "diff" if report == "diff" else "checkpoint"))
    context = browser.new_context(
        viewport={"width": 390, "height": 900}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    page.goto(path.as_uri())
    page.evaluate(axe)
    assert page.evaluate(SERIOUS) == []
    colours = page.locator("#colour option").evaluate_all("(all) => all.map(({ value }) => value)")
    for colour in colours:
        page.get_by_label("colour").select_option(colour)
        assert page.evaluate(SERIOUS) == [], colour
    if report != "diff":
        page.locator("#map button").first.click()
        assert page.evaluate(SERIOUS) == [], "of the chosen module"
    page.evaluate(
        "for (const each of document.querySelectorAll('.scroll:has(table)'))"
        "{ each.tabIndex = -1; each.firstElementChild.style.width = '900px'; }"
    )
    assert [each[0] for each in page.evaluate(SERIOUS)] == ["scrollable-region-focusable"]
    context.close()


@pytest.mark.browser
def test_a_browser_shows_hostile_names_as_text(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "picture.html"
    path.write_text(hostile_page())
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.title() == HOSTILE.replace("\u2028", " ").strip() or page.title() != "run"
    assert page.locator("#title").inner_text().startswith("</script><script>")
    assert page.locator("img").count() == 0
    context.close()
