from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest
from zerotools.ops.weights.renaming import namer, parse_rule


def renamed(name: str, *rules: str, prefixes: tuple[str, ...] = ()) -> str:
    return namer(prefixes, [parse_rule(rule) for rule in rules])(name)


def test_prefixes_are_taken_off_once_and_in_order() -> None:
    assert renamed("module.module.w", prefixes=("module.",)) == "module.w"
    assert renamed("module.model.w", prefixes=("module.", "model.")) == "w"
    assert renamed("module.model.w", prefixes=("model.", "module.")) == "model.w"
    assert renamed("w.module.", prefixes=("module.",)) == "w.module."


def test_rules_follow_the_prefixes_and_one_another() -> None:
    assert renamed("m.h.0.w", r"^h\.(\d+)=layers.\1", "layers=L", prefixes=("m.",)) == "L.0.w"
    assert renamed("a.b", "(?=b)=x") == "a.xb"
    assert renamed("a.weight.weight", r"\.weight$=") == "a.weight"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("plain", "is not REGEX=REPL"),
        ("=x", "is not REGEX=REPL"),
        ("(=x", "missing \\)"),
        (r"a=\1", "invalid group reference"),
    ],
)
def test_rules_that_are_none(rule: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        parse_rule(rule)


def test_a_name_cannot_become_empty() -> None:
    with pytest.raises(BadRequest, match="nothing would be left of the name w"):
        renamed("w", "w=")
