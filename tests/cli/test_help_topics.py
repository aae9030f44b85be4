"""Pages are read at 80 columns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from zerotools.cli.help_topics import KINDS, all_topics, find_topic, nearest
from zerotools.cli.main import build, run
from zerotools.cli.output.render import width
from zerotools.core.errors import BadRequest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_page_is_a_topic_and_no_two_have_one_name() -> None:
    pages = [path for kind in KINDS for path in (DOCS / kind).glob("*.md")]
    assert Counter(path.stem for path in pages) == Counter(all_topics().keys())
    assert all_topics()["first-job"].title == "Your first job"


@pytest.mark.parametrize("name", ["numa", "NUMA", "numa.md", "docs/how-to/numa.md"])
def test_a_topic_is_found_by_its_name_or_its_file(name: str) -> None:
    assert find_topic(name).path == DOCS / "how-to/numa.md"


def test_near_names_are_suggested() -> None:
    with pytest.raises(BadRequest, match=r"topic 'instal' does not exist; did you mean install"):
        find_topic("instal")
    assert "compare-checkpoints" in nearest("compare", all_topics())
    with pytest.raises(
        BadRequest, match="topic 'qqqq' does not exist; zerotools help lists all topics"
    ):
        find_topic("qqqq")


def test_a_page_is_shown_in_chinese_where_that_is_the_language(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZEROTOOLS_LANG", "zh")
    assert find_topic("first-job").title == "第一个任务"
    assert find_topic("json").path == DOCS / "reference" / "json.md"
    monkeypatch.setenv("ZEROTOOLS_LANG", "en")
    assert find_topic("first-job").title == "Your first job"


def test_the_list_is_in_the_language_of_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZEROTOOLS_LANG", "zh")
    assert run(build(), ["help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "文档页；用 zerotools help TOPIC 阅读其中一页"
    assert [line for line in lines if line.endswith(":")] == [
        "教程:", "操作指南:", "原理:", "参考（英文）:",
    ]  # fmt: skip
    assert next(line for line in lines if " first-job " in line).endswith("  第一个任务")
    assert max(map(width, lines)) <= 80
