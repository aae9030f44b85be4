from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import install_command
from zerotools.jobs.imports.accelerate_yaml import YAML_KEYS
from zerotools.jobs.text.yaml_parser import parse_yaml

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs", "Cc"), max_codepoint=0xFFFD))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.from_regex(r"[a-z]{1,9}_", fullmatch=True), inner)
    ),
    max_leaves=20,
)


def refused(text: str) -> str:
    with pytest.raises(BadRequest) as caught:
        parse_yaml(text, source="acc.yaml")
    return str(caught.value)


@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,9}_", fullmatch=True), VALUES),
    st.sampled_from([None, False, True]),
)
def test_what_accelerates_library_writes_is_read(tree: dict[str, Any], flow: bool | None) -> None:
    # aliases for equal lists are a habit of the library's own, and never in these configs
    dumper = type("Plain", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    text = yaml.dump(tree, Dumper=dumper, default_flow_style=flow)
    assert parse_yaml(text, source="x").tree == tree


def test_each_key_knows_its_line() -> None:
    document = parse_yaml("a: 1\nb:\n  c: [1, {d: 2}]\n", source="acc.yaml")
    assert document.location(("b", "c")) == "acc.yaml:3"
    assert document.location(("b", "c", "1", "d")) == "acc.yaml:3"
    assert document.tree == {"a": 1, "b": {"c": [1, {"d": 2}]}}


def test_dates_stay_text() -> None:
    assert parse_yaml("a: 2026-01-02\n", source="x").tree == {"a": "2026-01-02"}


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("a: 1\n\tb: 2\n", "2:1", "not indented with tabs; write spaces"),
        ("a: 1\nb: 2\na: 3\n", "3:1", 'the key "a" is also on line 1; keep one'),
        ("a: &x 1\nb: *x\n", "1:4", "an anchor or alias"),
        ("a: !!python/object/apply:os.system ['id']\n", "1:4", "a tag stands here"),
        ("a: !!binary aGk=\n", "1:4", "a tag stands here"),
        ("a: 1\n---\nb: 2\n", "2:1", "a second document"),
        ("- 1\n", "1:1", "a config is a mapping"),
        ("", "1:1", "a config is a mapping"),
        ("a: .nan\n", "1:4", "is not finite"),
        ("[a, b]: 1\n", "1:1", "a key must be plain text"),
        ("a: 1: 2\n", "1:5", "mapping values are not allowed here"),
        ("a: 'x\n", "2:1", "end of stream"),
        ("a: \x00\n", "1:4", "not printable"),
    ],
)
def test_broken_yaml_has_a_place_and_a_mend(text: str, place: str, told: str) -> None:
    message = refused(text)
    assert message.startswith(f"acc.yaml:{place}: is not valid YAML: ")
    assert told in message


def test_hostile_sizes_end_early() -> None:
    assert "nested deeper than 32 levels" in refused("a: " + "[" * 5000)
    assert "has 5000 characters" in refused("a: " + "9" * 5000)


def test_without_the_library_one_sentence_says_how_to_get_it() -> None:
    script = (
        "import sys; sys.modules['yaml'] = None\n"
        "from zerotools.jobs.text.yaml_parser import parse_yaml\n"
        "from zerotools.core.errors import BadRequest\n"
        "try:\n    parse_yaml('a: 1', source='acc.yaml')\n"
        "except BadRequest as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "acc.yaml: reading YAML needs PyYAML, which is not installed; run "
        f"{install_command('PyYAML>=6.0')}, or save the config as JSON\n"
    )


def test_comments_and_quoted_text_may_have_any_space() -> None:
    text = "# a\u00a0comment\ndistributed_type: NO # b\u00a0c\nmixed_precision: 'no\u00a0'\n"
    assert parse_yaml(text, source="acc.yaml", keys=YAML_KEYS).tree["mixed_precision"] == "no\u00a0"
