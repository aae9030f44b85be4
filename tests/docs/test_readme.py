"""The quick start, done word for word, in both languages: their blocks are the same."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness import forked
from harness.warm_interpreter import interpreter
from tests.daemon.daemons import REAL, daemon_in
from tests.docs.tutorials import ROOT, Block, blocks, follow
from tests.golden_files import DEEPSPEED
from zerotools.cli.main import build, run

README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
TRANSLATED = sorted((ROOT / "docs/zh").glob("*.md"))
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
QUICK_START = re.compile(r"^- .*README\.zh-CN\.md\)$", re.M)
"""Only the Chinese site has this page."""
PARTS = (r"^## ", r"^### ", r"^ *\|", r"^ *(?:-|\d\.) ", r"^!\[", r"^<!-- (?:end of )?tabs -->$")


def quick_start(page: Path) -> list[Block]:
    """The blocks that a newcomer copies; the page begins with others that only show."""
    return [block for block in blocks(page.read_text("utf-8")) if block.language != "console"]


def test_both_languages_have_the_same_blocks() -> None:
    assert quick_start(CHINESE) == quick_start(README)
    assert [block.language for block in quick_start(README)] == [
        *("bash", "bash"),
        *("sh", "toml", "sh", "sh"),
    ]


@pytest.mark.parametrize("page", [README, CHINESE], ids=lambda page: page.stem)
def test_30_lines_of_prose_lead_to_the_import_of_a_page(page: Path) -> None:
    readme = page.read_text("utf-8")
    place = f"docs/{'zh' if page == CHINESE else 'how-to'}/import-a-config.md"
    for text in (readme, (ROOT / place).read_text("utf-8")):
        before = text.partition("zerotools import page.html -o job.toml")
        assert before[1]
        prose = FENCED.sub("", before[0])
        assert len([line for line in prose.splitlines() if line.strip()]) <= 15
    assert f"({place})" in readme


def first_block(page: Path) -> list[str]:
    """The commands of the block that the page begins with, without comments."""
    block = next(blocks(page.read_text("utf-8")))
    assert block.language == "console"
    return [line.removeprefix("$ ").partition("#")[0].strip() for line in block.text.splitlines()]


def test_the_first_block_is_what_the_quick_start_does() -> None:
    assert first_block(CHINESE) == first_block(README)
    outside, daemon, *commands = first_block(README)
    assert (outside, daemon) == (
        "zerotools consolidate output/checkpoint-2000 model",
        "zerotoolsd &",
    )
    done = [
        line.partition("#")[0].strip()
        for block in quick_start(README)
        if block.language == "sh"
        for line in block.text.splitlines()
    ]
    assert [line for line in done if line in commands] == commands


def test_the_first_command_needs_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "output").mkdir()
    source = DEEPSPEED / "z3-bf16-w2" / "checkpoint"
    (tmp_path / "output" / "checkpoint-2000").symlink_to(source)
    monkeypatch.chdir(tmp_path)
    assert run(build(), first_block(README)[0].split()[1:]) == 0
    assert "wrote model" in capsys.readouterr().out


def test_the_readme_is_short() -> None:
    for page in (README, CHINESE):
        assert len(page.read_text("utf-8").splitlines()) <= 150


def test_the_first_block_fits_a_terminal_of_80_columns() -> None:
    for page in (README, CHINESE):
        for block in blocks(page.read_text("utf-8")):
            assert max(map(len, block.text.splitlines())) <= 80, block.text


def english_of(page: Path) -> Path:
    """The page of which `page` in Chinese is a translation."""
    if page.name in ("index.md", "README.md"):
        return ROOT / "docs" / page.name
    [english] = [
        path
        for path in ROOT.glob(f"docs/*/{page.name}")
        if path.parent.name in ("tutorial", "how-to", "explanation")
    ]
    return english


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.stem)
def test_chinese_pages_have_all_that_the_english_ones_have(page: Path) -> None:
    """The same blocks, and as many headings, rows, entries, pictures and tabs."""
    english = english_of(page)
    assert f"[English]({os.path.relpath(english, page.parent)})" in page.read_text("utf-8")
    texts = [each.read_text("utf-8") for each in (english, page)]
    assert FENCED.findall(texts[1]) == FENCED.findall(texts[0])
    prose = [QUICK_START.sub("", FENCED.sub("", text)) for text in texts]
    for part in PARTS:
        assert len({len(re.findall(part, text, re.M)) for text in prose}) == 1, part


def test_the_chinese_start_page_has_the_figures_of_the_english_one() -> None:
    page = ROOT / "docs/zh/index.md"
    figures = [
        re.findall(r"[\d.,]+ (?:s|MiB)\b", each.read_text("utf-8"))
        for each in (page, english_of(page))
    ]
    assert figures[0] == figures[1] != []
    assert page.read_text("utf-8").count("\n- **") == 3


def test_chinese_pages_have_every_tutorial_and_the_readme_all_that_the_english_one_has() -> None:
    chinese = {path.name for path in TRANSLATED}
    tutorials = {path.name for path in (ROOT / "docs/tutorial").glob("*.md")}
    assert chinese >= {*tutorials, "troubleshooting.md", "index.md"}
    texts = [page.read_text("utf-8") for page in (README, CHINESE)]
    for line in (r"^## ", r"^\| ", r"^(?:- |\d\. )"):
        assert len({len(re.findall(line, text, re.M)) for text in texts}) == 1, line


def test_the_daemon_is_started_before_the_first_job() -> None:
    for page in (README, CHINESE):
        text = page.read_text("utf-8")
        assert text.index("zerotoolsd") < text.index("zerotools submit")
        quick = [block.text for block in quick_start(page)]
        assert quick.index("zerotoolsd\n") < quick.index(next(t for t in quick if "submit" in t))


def test_commands_in_the_chinese_tables_are_in_the_english_documents() -> None:
    words = set(re.findall(r"`zerotools (\w+)", CHINESE.read_text("utf-8")))
    assert words <= set(re.findall(r"zerotools (\w+)", README.read_text("utf-8")))


@pytest.mark.torch
@pytest.mark.dear(80, "a daemon, a job on two ranks, its exports, and one that goes on")
@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.full)])
def test_the_quick_start_works(tmp_path: Path, warm: bool) -> None:
    """Warm: its ranks are forked from a process with torch imported."""
    work = tmp_path / "work"
    work.mkdir()
    shared = interpreter(tmp_path / "python", forked.TORCH) if warm else nullcontext()
    with shared as python, daemon_in(tmp_path / "state", program=REAL) as daemon:
        daemon.start()
        said = follow(README, work, daemon.state / "api.sock", python)
    assert "succeeded at step 40 of 40" in said
    assert "wrote exported" in said
    assert "wrote for-one" in said
    assert "succeeded at step 60 of 60" in said
    assert (work / "exported" / "config.json").is_file()


def test_no_page_installs_from_an_index_what_is_on_none() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = re.compile(r"(?:pip|pipx|uv tool) install [^\n`]*(?<![\w/.-])'?zerotools(?:\[|'|\s|$)")
    found = [
        f"{page.name}: {match[0]}"
        for page in pages
        if page.name != "CHANGELOG.md"
        for match in named.finditer(page.read_text("utf-8"))
    ]
    assert found == []
