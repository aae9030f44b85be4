from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.cli.help_topics import all_topics, find_topic
from zerotools.cli.markdown_to_plain_text import CODE_INDENT, plain_text
from zerotools.cli.output.render import width

ROOT = Path(__file__).resolve().parents[2]
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
