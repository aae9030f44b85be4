"""The quick start, done word for word, in both languages: their blocks are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.daemon.daemons import REAL, daemon_in
from tests.docs.tutorials import ROOT, Block, blocks, follow

README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"


def quick_start(page: Path) -> list[Block]:
    """The blocks that a newcomer copies; the page begins with others that only show."""
    return [block for block in blocks(page.read_text("utf-8")) if block.language != "console"]


def test_both_languages_have_the_same_blocks() -> None:
    assert quick_start(CHINESE) == quick_start(README)
    assert [block.language for block in quick_start(README)] == [
        *("bash", "bash", "bash"),
        *("sh", "toml", "sh"),
    ]


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
@pytest.mark.dear(40, "a daemon, a job on two ranks and its exports")
def test_the_quick_start_works(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with daemon_in(tmp_path / "state", program=REAL) as daemon:
        daemon.start()
        said = follow(README, work, daemon.state / "api.sock")
    assert "succeeded at step 40 of 40" in said
    assert "wrote exported" in said
    assert "wrote for-three" in said
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
