"""Rules that make names meet which match in part."""

from __future__ import annotations

import pytest

from zerotools.ops.comparison.proposals import propose
from zerotools.ops.weights.renaming import namer, parse_rule

NAMES = {
    "model.embed_tokens.weight": (8, 4),
    "model.layers.0.mlp.weight": (4, 4),
    "model.layers.0.norm.weight": (4,),
    "model.layers.1.mlp.weight": (4, 4),
    "model.layers.1.norm.weight": (4,),
    "lm_head.weight": (8, 4),
}


def renamed(names: dict[str, tuple[int, ...]], rule: str) -> dict[str, tuple[int, ...]]:
    new_name = namer((), [parse_rule(rule)])
    return {new_name(name): shape for name, shape in names.items()}


@pytest.mark.parametrize(
    ("ours", "rule"),
    [
        ({f"module.{name}": shape for name, shape in NAMES.items()}, r"^module\.="),
        ({name.removeprefix("model."): s for name, s in NAMES.items()}, "^=model."),
        ({f"_orig_mod.{name}": s for name, s in NAMES.items()}, r"_orig_mod\.="),
        (
            {n.replace("layers.", "layers._fsdp_wrapped_module."): s for n, s in NAMES.items()},
            r"_fsdp_wrapped_module\.=",
        ),
        ({n.replace("model.", "gpt_neox."): s for n, s in NAMES.items()}, r"^gpt_neox\.=model."),
    ],
)
def test_the_rule_that_is_proposed_makes_them_meet(
    ours: dict[str, tuple[int, ...]], rule: str
) -> None:
    lacking = {name: s for name, s in ours.items() if name not in NAMES}
    wanted = {name: s for name, s in NAMES.items() if name not in ours}
    found = propose(lacking, wanted)
    best = next(iter(found))
    assert best == rule
    assert found[best] == len(renamed(lacking, best).items() & wanted.items()) > 0


def test_what_only_b_has_inserted_is_taken_out_there() -> None:
    theirs = {f"_orig_mod.{name}": shape for name, shape in NAMES.items()}
    assert r"_orig_mod\.=" in propose(NAMES, theirs)


def test_names_with_nothing_in_common_get_no_rule() -> None:
    other = {f"encoder.block.{n}.kernel": (3, 3) for n in range(9)}
    assert propose(NAMES, other) == {}
    assert propose(NAMES, {}) == propose({}, NAMES) == {}
    shapes = {f"module.{name}": (7, *shape) for name, shape in NAMES.items()}
    assert propose(shapes, NAMES) == {}


def test_thousands_of_names_take_no_time() -> None:
    many = {f"layers.{n}.block.{part}.weight": (4, 4) for n in range(1500) for part in "abcd"}
    ours = {f"module.{name}": shape for name, shape in many.items()}
    assert propose(ours, many) == {r"^module\.=": len(many)}


def test_a_second_rule_is_for_what_the_first_leaves() -> None:
    rest = {"head.out.weight": (2, 2), "head.in.weight": (3, 3)}
    ours = {f"module.{n}": s for n, s in NAMES.items()} | {f"old_{n}": s for n, s in rest.items()}
    assert propose(ours, {**NAMES, **rest}) == {r"^module\.=": 6, r"^old_head\.=head.": 2}
