"""A JSON that was pasted from a web page is mended in one pass, every mend named by its line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadRequest
from zerotools.jobs.text.json_parser import parse_json
from zerotools.jobs.text.mend_pasted_json import mend_json
from zerotools.jobs.text.parse_errors import Broken

WHOLE = {
    "train_batch_size": 16,
    "fp16": {"enabled": True, "loss_scale": 0},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-5, "betas": [0.9, 0.999]}},
}
TEXT = json.dumps(WHOLE, indent=2)


def mended(text: str) -> dict[str, Any]:
    document = parse_json(text, source="ds.json", lenient=True)
    assert document.mended is not None
    assert json.loads(document.mended) == document.tree
    assert document.accepted
    return dict(document.tree)


PAGES = {
    "non-breaking spaces": TEXT.replace("  ", "\u00a0\u00a0"),
    "ideographic spaces": TEXT.replace(": ", ":\u3000"),
    "a byte order mark inside": TEXT.replace('"fp16"', '\ufeff"fp16"'),
    "typographic quotes": TEXT.replace('"', "\u201d"),
    "quotes that open and close": TEXT.replace('"fp16"', "\u201cfp16\u201d").replace(
        '"stage"', "\u201estage\u201c"
    ),
    "half typographic": TEXT.replace('"fp16"', '"fp16\u201d'),
    "full-width punctuation": TEXT.replace(":", "\uff1a").replace(",", "\uff0c"),
    "full-width braces": TEXT.replace("{", "\uff5b").replace("}", "\uff5d"),
    "single quotes": TEXT.replace('"', "'"),
    "Python": "ds_config = " + repr(WHOLE),
    "missing commas": TEXT.replace(",\n", "\n"),
    "a missing comma between settings of one line": " ".join(TEXT.split()).replace(', "', ' "'),
    "trailing commas": TEXT.replace("\n}", ",\n}"),
    "semicolons": TEXT.replace(",\n", ";\n"),
    "comments": TEXT.replace(",\n", ", // it's a \u201cquote\u201d {\n"),
    "text around": f"Save this as ds.json:\n\n```json\n{TEXT}\n```\nand run it. That's all!\n",
    "a heredoc": f"cat > ds.json <<'EOT'\n{TEXT}\nEOT\n",
    "line numbers": "\n".join(f"{i} {x}" for i, x in enumerate(TEXT.split("\n"), 1)),
    "line numbers with dots": "\n".join(f"{i:2}. {x}" for i, x in enumerate(TEXT.split("\n"), 1)),
    "line numbers below a heading": "ds.json:\n\n"
    + "\n".join(f"{i}. {x}" for i, x in enumerate(TEXT.split("\n"), 1))
    + "\n",
    "no outer braces": TEXT.strip()[1:-1],
    "keys of JavaScript": TEXT.replace('"stage"', "stage").replace('"cpu"', "cpu"),
    "numbers of Python": TEXT.replace("0.9,", ".9,").replace("16,", "1_6,"),
    "a tuple": TEXT.replace("[", "(").replace("]", ")"),
    "dashes and equal signs": TEXT.replace('"stage": ', '"stage" = '),
}


@pytest.mark.parametrize("page", PAGES)
def test_it_is_the_config_again(page: str) -> None:
    assert mended(PAGES[page]) == WHOLE
    with pytest.raises(BadRequest, match="--lenient repairs this"):
        parse_json(PAGES[page], source="ds.json")


def test_all_at_once_by_line() -> None:
    text = (
        "Listing 1:\n{\n\u00a0\u201cfp16\u201d: {'enabled': True,\n  loss_scale: 0},  # dynamic\n"
        '  "bf16"\uff1a {"enabled": None}\n  "steps_per_print": 10,\n}\nThat is it\n'
    )
    document = parse_json(text, source="ds.json", lenient=True)
    assert document.tree == {
        "fp16": {"enabled": True, "loss_scale": 0},
        "bf16": {"enabled": None},
        "steps_per_print": 10,
    }
    assert document.accepted == (
        "ds.json:1: text before the first {",
        "ds.json:3: True for true",
        "ds.json:3: a non-breaking or other odd space",
        "ds.json:3: single quotes",
        "ds.json:3: typographic quotes",
        "ds.json:4: a comment",
        "ds.json:4: loss_scale without quotes",
        "ds.json:5: None for null",
        "ds.json:5: a missing comma",
        "ds.json:5: \uff1a for :",
        "ds.json:6: a trailing comma",
        "ds.json:8: text after the last }",
    )
    assert document.location(("steps_per_print",)) == "ds.json:6"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"zero_optimization": {"stage": 2, ...}}', "the dots stand for settings that the page"),
        ('{\n  ...\n  "fp16": {}\n}', "ds.json:2:3: is not valid JSON: the dots stand"),
        ('{"zero_optimization": {\u2026}}', "the dots stand for settings"),
        ('{"...": "...", "fp16": {}}', "the dots stand for settings"),
        ('{"a": 1}\nor, for stage 3:\n{"a": 2}', "ds.json:3:1: is not valid JSON: a second object"),
        ('{"a": ture}', "ture is not JSON; write true"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": "x\n}', "this string is not closed on its line"),
        ('{"a": {"b": 1}', "the { of line 1 is not closed"),
        ('{"a": 1}}', "but the object has already ended"),
        ('{"a": 1},\n"b": 2 }', "but the object has already ended"),
        ('{"a": 1}\n"b": 2', "ds.json:2:1: is not valid JSON: this setting stands outside"),
        ('config:\n"b": 2,\n"c": {"a": 1}', "ds.json:2:1: is not valid JSON: this setting"),
        ("{'a': 1, \"a\": 2}", "is also on line 1"),
        ("nothing of the kind", "a config begins with {"),
    ],
)
def test_what_would_be_a_guess_is_refused(text: str, told: str) -> None:
    for lenient in (True, False):
        with pytest.raises(BadRequest) as caught:
            parse_json(text, source="ds.json", lenient=lenient)
        if lenient:
            assert told in str(caught.value)
        assert "--lenient repairs" not in str(caught.value)


KEYS = st.text(st.sampled_from("ab \u00e9\u4e2d\"'\\"), min_size=1, max_size=4)
TREES = st.recursive(
    st.booleans() | st.none() | st.integers(-9, 9) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_what_is_json_already_is_left_as_it_is(tree: dict[str, Any]) -> None:
    text = json.dumps(tree, indent=1, ensure_ascii=False)
    try:
        found = mend_json(text)
    except Broken as broken:
        pytest.fail(f"{broken.what}: {text}")
    assert json.loads(found.text) == tree


@given(st.text(st.sampled_from("{}[]:,'\"\u201c\u00a0\n.#/ aT1"), max_size=30))
def test_whatever_comes_is_mended_to_json_or_refused(text: str) -> None:
    try:
        document = parse_json(text, source="x", lenient=True)
    except BadRequest:
        return
    assert json.loads(document.mended if document.mended is not None else text) == document.tree


def test_numbers_of_a_list_are_no_line_numbers() -> None:
    assert mended('{"a": [\n1\n2\n3\n]}') == {"a": [1, 2, 3]}


def test_a_heading_is_told_from_a_word_without_quotes() -> None:
    with pytest.raises(BadRequest, match=r"there is text before the first \{; remove the text"):
        parse_json(PAGES["text around"], source="ds.json")


def test_a_long_page_is_mended_in_time_that_grows_with_it() -> None:
    entries = "\n".join(f"'k{i}': {i}" for i in range(5_000))
    assert len(mended(f"{{{entries}}}")) == 5_000
