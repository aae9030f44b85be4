from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.imports.jobs import CONFIGS
from zerotools.core.errors import BadRequest
from zerotools.jobs.text.config_document import DEEPEST
from zerotools.jobs.text.json_parser import parse_json

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
CONFIG = st.dictionaries(st.text(), VALUES)


def refused(text: str) -> str:
    with pytest.raises(BadRequest) as caught:
        parse_json(text, source="ds.json")
    return str(caught.value)


@given(CONFIG, st.sampled_from([None, 0, 2]), st.booleans())
def test_valid_json_is_what_the_library_reads_strict_and_lenient(
    tree: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=ascii_only)
    strict, lenient = (parse_json(text, source="x", lenient=each) for each in (False, True))
    assert strict.tree == json.loads(text)
    assert lenient == strict
    assert strict.accepted == ()


@given(CONFIG)
def test_lenient_reads_comments_and_trailing_commas(tree: dict[str, Any]) -> None:
    text = json.dumps(tree, indent=1)
    lines = [
        f"{line}{',' if _ends_an_object(line) else ''} // a, }} comment"
        for line in text.split("\n")
    ]
    found = parse_json("\n".join(["# head", *lines, "/* tail */"]), source="x", lenient=True)
    assert found.tree == tree
    assert len(found.accepted) >= len(lines)


def _ends_an_object(line: str) -> bool:
    """Whether a line of indented JSON is a last member: it has no comma, and opens nothing."""
    return line.startswith(" ") and line[-1] not in ",[{"


@pytest.mark.parametrize(
    ("text", "place", "what", "mend"),
    [
        ('{\n  "a": 1 # c\n}', "2:10", "no comments", "--lenient repairs this"),
        ('{\n  "a": 1 // c\n}', "2:10", "no comments", "--lenient repairs this"),
        ('{"a": 1,\n}', "1:8", "a comma stands before }", "remove the comma (--lenient"),
        ('{"a": [1,]}', "1:9", "a comma stands before ]", "remove the comma"),
        ('{\n "x": true\n "y": 2}', "2:11", "a comma is missing", "write , after the value"),
        ("{'a': 1}", "1:2", "no single quotes", 'write "..."'),
        ("{“a”: 1}", "1:2", "typographic quotes", "straight"),
        ('{"a": True}', "1:7", "True is not JSON", "write true"),
        ('{"a": None}', "1:7", "None is not JSON", "write null"),
        ('{"a": ture}', "1:7", "ture is not JSON", "write true"),
        ('{"a": cpu}', "1:7", "stands without quotes", 'write "cpu"'),
        ('{"a": NaN}', "1:7", "NaN is not a JSON number", "finite"),
        ('{"a": -Infinity}', "1:7", "not a JSON number", "finite"),
        ('{"a": 1e999}', "1:7", "larger than any number", "smaller"),
        ('{"a": .5}', "1:7", "not a JSON number", "write 0.5"),
        ('{"a": 05}', "1:7", "not a JSON number", "write 5"),
        ('{"a": 0x10}', "1:7", "not a JSON number", "digits"),
        ('{"a" = 1}', "1:6", "has no =", "write :"),
        ('{"a": 2;}', "1:8", "no semicolons", "write a comma"),
        ('{"a" 1}', "1:5", "a colon is missing", "write :"),
        ('{"a": ,}', "1:7", "a value is missing", "write one"),
        ('{"a": 1,, "b": 2}', "1:9", "two commas", "remove one"),
        ('{"a": 1}}', "1:9", "has no matching {", "remove"),
        ('{"a": 1} {}', "1:10", "has ended before", "remove"),
        ('{"a": [1}', "1:9", "} closes the [ of line 1", "write ]"),
        ('{"a": "C:\\tmp\\x"}', "1:14", "begins no escape", "write \\\\"),
        ('{"a": "x\n"}', "1:7", "not closed on its line", 'add "'),
        ('{"a": "x', "1:7", "never closed", 'add "'),
        ('{"a": /* x', "1:7", "never ends", "add */"),
        ("", "1:1", "the file is empty", "{ }"),
        ("[1]", "1:1", "begins with {", "put {"),
        ('{"a": 1,', "1:9", "{ of line 1 is not closed", "add }"),
    ],
)
def test_broken_json_has_a_place_and_a_mend(text: str, place: str, what: str, mend: str) -> None:
    message = refused(text)
    head = message.split("\n")[0]
    assert head.startswith(f"ds.json:{place}: is not valid JSON: ")
    assert what in head
    assert mend in head


def test_the_line_is_shown_with_a_mark_below_the_column() -> None:
    message = refused('{\n\t"overlap_comm": true "stage": 2\n}')
    assert message.split("\n")[1:] == [
        '     2 |  "overlap_comm": true "stage": 2',
        "       |                      ^",
    ]


def test_a_long_line_is_shown_around_its_column() -> None:
    shown, mark = refused('{"a": "' + "x" * 5000 + '", "b": True, "c": 1}').split("\n")[1:]
    assert len(shown) < 100
    assert shown[mark.index("^") :].startswith("True")


def test_a_brace_that_was_lost_is_guessed_from_the_indentation() -> None:
    message = refused('{\n  "zero": {\n    "stage": 2,\n  "fp16": {\n    "a": 1\n  }\n}\n')
    assert 'the { of line 2 seems to lack its }; add the } before "fp16"' in message


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    message = refused('{\n "a": 1,\n "b": {"a": 2},\n "a": 1\n}')
    assert message.startswith(
        'ds.json:4:2: is not valid JSON: the key "a" is also on line 2; keep one of the two'
    )


def test_the_published_flaws_are_mended_in_one_pass() -> None:
    text = (CONFIGS / "broken.json").read_text()
    message = refused(text)
    assert message.startswith("ds.json:2:29: ")
    assert "(--lenient repairs this and 3 more errors, and shows the result)" in message
    document = parse_json(text, source="ds.json", lenient=True)
    assert document.accepted == (
        "ds.json:2: a comment",
        "ds.json:4: a comment",
        "ds.json:5: a trailing comma",
        "ds.json:9: a missing comma",
    )
    assert document.location(("zero_optimization", "stage")) == "ds.json:8"


@pytest.mark.parametrize("opener", ['{"a":', "["])
def test_nesting_has_an_end(opener: str) -> None:
    text = '{"a":' + opener * 100_000
    assert f"nested deeper than {DEEPEST} levels" in refused(text)


def test_a_number_of_a_million_digits_is_refused_and_not_shown() -> None:
    message = refused('{"a": ' + "9" * 1_000_000 + "}")
    assert "has 1000000 characters" in message
    assert len(message) < 400
