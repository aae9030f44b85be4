"""`zerotools help`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from zerotools.cli.commands.help import (
    CODE_INDENT,
    KINDS,
    all_topics,
    find_topic,
    nearest,
    plain_text,
)
from zerotools.cli.main import build, run
from zerotools.cli.output.render import width
from zerotools.core.errors import BadRequest


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(build(), ["help", *arguments]) == 0
    return capsys.readouterr().out


def test_the_pages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  numa " in said(capsys)
    assert "numa" in said(capsys, "--list").splitlines()
    listed = json.loads(said(capsys, "--json"))["topics"]
    assert {"topic": "first-job", "kind": "tutorial", "title": "Your first job"} in listed
    assert max(map(len, said(capsys).splitlines())) <= 80


def test_a_page_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "install").startswith("Install\n=======\n")
    page = json.loads(said(capsys, "install", "--json"))["page"]
    assert page["text"].startswith("# Install\n")
    assert (page["topic"], page["kind"]) == ("install", "how-to")


def test_a_command_is_a_topic_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "inspect").startswith("Usage: zerotools inspect [OPTIONS] PATH")
    assert json.loads(said(capsys, "inspect", "--json"))["page"]["kind"] == "command"


def test_an_unknown_topic_is_a_bad_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build(), ["help", "trouble-shoting"]) == 2
    assert "did you mean troubleshooting" in capsys.readouterr().err


DOCS = Path(__file__).resolve().parents[3] / "docs"


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


ROOT = Path(__file__).resolve().parents[3]
PAGE = """<!-- made by hand -->
# A page

Words **that are strong** lead to [another page](../how-to/numa.md#nodes), to [a
site](https://example.org/a), and [below](#below).

| a | b |
|---|---|
| `one \\| two` | 2 |

## Below

- an item that goes on
  in a second line
1. a number

```sh
zerotools inspect   PATH
# no heading
```
"""
SHOWN = """A page
======

Words that are strong lead to another page
[numa], to a site (https://example.org/a), and
below.

a           b
----------  -
`one | two`  2
"""


def test_a_page_as_text() -> None:
    lines = list(plain_text(PAGE, 46))
    assert lines[:6] == SHOWN.splitlines()[:6]
    assert "a            b" in lines
    assert "`one | two`  2" in lines
    assert "Below" in lines
    assert "-----" in lines
    assert "- an item that goes on in a second line" in lines
    assert "1. a number" in lines
    assert f"{CODE_INDENT}zerotools inspect   PATH" in lines
    assert f"{CODE_INDENT}# no heading" in lines
    assert ["", ""] not in [lines[at : at + 2] for at in range(len(lines))]


def test_a_wide_table_has_its_rows_below_one_another() -> None:
    table = "| key | type | meaning |\n|---|---|---|\n| `a` | string | " + "word " * 10 + "|\n"
    lines = list(plain_text(table, 30))
    assert lines[:3] == ["`a`", "    type: string", "    meaning: word word word"]
    two = "| key | meaning |\n|---|---|\n| `a` | " + "word " * 10 + "|\n"
    assert list(plain_text(two, 30))[:2] == ["`a`", "    word word word word word"]


@pytest.mark.parametrize("name", all_topics())
def test_every_page_of_ours_fits_into_80_columns_but_for_code_and_addresses(name: str) -> None:
    lines = list(plain_text(all_topics()[name].markdown()))
    too_wide = [
        line
        for line in lines
        if width(line) > 80 and not line.startswith(CODE_INDENT) and " " in line.strip()
    ]
    assert too_wide == []
    assert [line for line in lines if "](" in line and not line.startswith(CODE_INDENT)] == []


@pytest.mark.parametrize(
    "name", sorted({page.stem for page in (ROOT / "docs/zh").glob("*.md")} - {"index", "README"})
)
def test_chinese_pages_fit_too_and_end_no_line_before_a_comma(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEROTOOLS_LANG", "zh")
    lines = list(plain_text(find_topic(name).markdown()))
    shown = [line for line in lines if not line.startswith(CODE_INDENT)]
    assert [line for line in shown if width(line) > 80] == []
    assert [line for line in shown if line[:1] in "，。；：、）" and line] == []
