from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint, Key, Origin, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest
from zerotools.ops.weights.select_and_rename import (
    MASTERS,
    WEIGHTS,
    choose_names,
    name_function,
    name_matcher,
    parse_rule,
    weights_from,
)


def renamed(name: str, *rules: str, prefixes: tuple[str, ...] = ()) -> str:
    return name_function(prefixes, [parse_rule(rule) for rule in rules])(name)


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
    with pytest.raises(BadRequest, match="the name w would become empty"):
        renamed("w", "w=")


def checkpoint(aliases: dict[str, str] | None = None, **tensors: DType) -> Checkpoint:
    """Tensors by `name__role`."""
    keys = {Key(*text.split("__")): Tensor(dtype, (2,), ()) for text, dtype in tensors.items()}
    return Checkpoint(Path("x"), keys, Origin("test", Path("x")), aliases=aliases or {})


ZERO = {
    "w__param": dtypes.FLOAT32,
    "w__exp_avg": dtypes.FLOAT32,
    "w__param16": dtypes.BFLOAT16,
    "frozen__param": dtypes.BFLOAT16,
    "odd__param16": dtypes.FLOAT16,
    "mask__buffer": dtypes.BOOL,
}


def types(found: Checkpoint) -> dict[str, str]:
    return {str(key): tensor.dtype.name for key, tensor in found.tensors.items()}


def test_masters_where_there_are_any() -> None:
    assert types(weights_from(checkpoint(**ZERO), MASTERS)) == {
        "w": "float32",
        "frozen": "bfloat16",
        "odd": "float16",
        "mask (buffer)": "bool",
    }


def test_the_16_bit_weights_and_what_was_not_trained() -> None:
    assert types(weights_from(checkpoint(**ZERO), WEIGHTS)) == {
        "w": "bfloat16",
        "frozen": "bfloat16",
        "odd": "float16",
        "mask (buffer)": "bool",
    }


def test_masters_alone_have_no_16_bit_weights() -> None:
    with pytest.raises(BadRequest, match="no 16-bit weights next to its masters"):
        weights_from(checkpoint(w__param=dtypes.FLOAT32), WEIGHTS)
    plain = checkpoint(w__param=dtypes.BFLOAT16)
    assert types(weights_from(plain, WEIGHTS)) == {"w": "bfloat16"}


def test_a_tied_name_holds_the_bytes_where_the_other_is_left_out() -> None:
    tied = checkpoint({"head": "embed", "copy": "embed"}, embed__param=dtypes.FLOAT32)
    both = choose_names(tied, name_matcher((), ()))
    assert (types(both), both.aliases) == ({"embed": "float32"}, tied.aliases)
    alone = choose_names(tied, name_matcher((), ("embed",)))
    assert (types(alone), alone.aliases) == ({"head": "float32"}, {"copy": "head"})
    assert choose_names(tied, name_matcher(("embed",), ())).aliases == {}
