"""Patterns match what `re.match` finds, without trying every way."""

from __future__ import annotations

import re
import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.linear_time_regex import NamePatterns, exact_text, exclusion_patterns

ONE = st.sampled_from((
    "a", "b", ".", r"\.", r"\d", r"\w", r"\S", "[ab]", "[^a]", "[a-c-]", r"[\d.]", "^", "$", "-",
    "{",
))  # fmt: skip
TIMES = st.sampled_from(("", "", "*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{,2}", "{2,}"))


def _join(parts: list[tuple[str, str]]) -> str:
    return "".join(part + ("" if part in "^$" else times) for part, times in parts)


PATTERNS = st.recursive(
    st.lists(st.tuples(ONE, TIMES), max_size=4).map(_join),
    lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda parts: st.sampled_from(
            (
                f"({'|'.join(parts)})",
                f"(?:{'|'.join(parts)})?",
                f"({parts[0]}){{0,2}}",
                "".join(parts),
            )
        )
    ),
    max_leaves=6,
)
NAMES = st.text("ab.1-{\n", max_size=8)


@given(st.lists(PATTERNS, max_size=4), st.lists(NAMES, max_size=4))
def test_as_re_does(patterns: list[str], names: list[str]) -> None:
    several = NamePatterns(patterns, "F")
    for name in names:
        expected = [each for each in dict.fromkeys(patterns) if re.match(each, name)]
        assert several.matching(name) == expected


REAL = (
    r"^model\.layers\.0\.self_attn\.q_proj\.weight$",  # AutoTP
    r"tied_modules.embed.word_embeddings.norm.weight",  # Megatron-DeepSpeed
    r"\d+.self_attention.dense.bias",
    r".*(?:input_layernorm|q_norm|model.norm)\.weight$",
    r".*\.experts\.w[123]$",
)


def test_patterns_that_programs_write() -> None:
    patterns = NamePatterns(REAL, "F")
    for number, name in enumerate((
        "model.layers.0.self_attn.q_proj.weight",
        "tied_modules.embed.word_embeddings.norm.weight",
        "12.self_attention.dense.bias",
        "model.layers.3.input_layernorm.weight",
        "layers.3.experts.w2",
    )):  # fmt: skip
        assert patterns.matching(name) == [REAL[number]]
    assert patterns.matching("model.layers.1.self_attn.q_proj.weight") == []


def test_one_name_is_looked_up() -> None:
    assert exact_text(r"^a\.b\-c$") == "a.b-c"
    assert exact_text("a$") == "a"
    for other in ("a", "^a.b$", r"^a\d$", "^a+$", "^a\\$"):
        assert exact_text(other) is None


def test_many_layers_take_no_time() -> None:
    names = [
        f"model.layers.{layer}.experts.{expert}.w1" for layer in range(40) for expert in range(99)
    ]
    patterns = NamePatterns([*(f"^{re.escape(name)}$" for name in names), *REAL, r".*\.w1"], "F")
    began = time.process_time()
    assert all(patterns.matching(name) == [f"^{re.escape(name)}$", r".*\.w1"] for name in names)
    assert time.process_time() - began < 5


def test_what_re_takes_years_for() -> None:
    assert NamePatterns([r"(a+)+$"], "F").matching("a" * 4000 + "b") == []
    with pytest.raises(BadFile, match="F: its patterns of names would take very long"):
        NamePatterns(["(((a?){1000}){1000}){1000}"], "F")


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a**", "repeats a repetition"),
        ("*a", r"has a \* with nothing before it"),
        ("[ab", r"has a \[ that is not closed"),
        ("[b-a]", "has a range without an end"),
        ("a)", r"has a \) without a \("),
        ("(a", r"has a \( that is not closed"),
        ("a\\", r"ends in a \\"),
        ("a{3,2}", r"repeats something \{3,2\} times"),
    ],
)
def test_what_is_none(pattern: str, says: str) -> None:
    with pytest.raises(re.error):
        re.compile(pattern)
    with pytest.raises(
        BadFile, match=f"^F: its pattern '.*' is not a regular expression: it {says}$"
    ):
        NamePatterns([pattern], "F")


@pytest.mark.parametrize("pattern", ["a(?=b)", "(?i)a", r"(a)\1", r"a\b", "a++", "(?<!a)b"])
def test_what_is_not_followed(pattern: str) -> None:
    with pytest.raises(Unsupported, match=r"^F: its pattern '.*' has .*, which zerotools does not"):
        NamePatterns([pattern], "F")


NEEDED = [f"model.layers.{n}.{part}.weight" for n in range(3) for part in ("q", "k")]
NEEDED += ["model.norm.weight", "lm_head.weight"]


@pytest.mark.parametrize(
    ("unwanted", "patterns"),
    [
        (["v_head.a.weight", "v_head.a.bias"], ["v_head.a.*"]),
        (["model.layers.0.extra", "model.stat"], ["model.layers.0.extra", "model.stat"]),
        ([f"model.layers.{n}.q_norm.weight" for n in range(3)], ["*.q_norm.weight"]),
        (["v_head.weight", "ema"], ["v_head.weight", "ema"]),
        (["a.x[0]*", "b"], ["a.x[[]0][*]", "b"]),
        (["mtp.0.a", "mtp.0.b", "stat"], ["mtp.0.*", "stat"]),
    ],
)
def test_all_unwanted_names_and_no_needed_one_match(
    unwanted: list[str], patterns: list[str]
) -> None:
    found = exclusion_patterns(unwanted, NEEDED)
    assert found == patterns
    held = [*NEEDED, *unwanted]
    assert [n for n in held if not any(fnmatchcase(n, each) for each in found)] == NEEDED
