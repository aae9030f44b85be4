"""Which tensors of two checkpoints are the same one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadRequest
from zerotools.ops.comparison.pair_tensors import Pairing, pair_up, propose, renamed_sides
from zerotools.ops.weights.select_and_rename import name_function, parse_rule

SHAPE = (2, 3)


def checkpoint(
    *keys: str | tuple[str, str], aliases: Mapping[str, str] | None = None
) -> Checkpoint:
    named = [Key(key, "param") if isinstance(key, str) else Key(*key) for key in keys]
    chunk = Chunk(Box.whole(SHAPE), "file", 0)
    tensors = {key: Tensor(FLOAT32, SHAPE, (chunk,)) for key in named}
    root = Path("/nowhere")
    return Checkpoint(root, tensors, Origin("test", root), aliases=aliases or {})


def paired(a: Checkpoint, b: Checkpoint, *rules: str, **chosen: list[str]) -> Pairing:
    sides = renamed_sides(a, b, [parse_rule(rule) for rule in rules])
    return pair_up(sides[0], sides[1], chosen.get("roles", ()), chosen.get("include", ()))


def names(pairing: Pairing) -> list[tuple[str, str, str]]:
    return [(pair.name, str(pair.a), str(pair.b)) for pair in pairing.pairs]


def test_by_name_and_role() -> None:
    a = checkpoint("x", ("x", "exp_avg"), "y")
    b = checkpoint("x", ("x", "exp_avg"), ("x", "exp_avg_sq"), "z")
    found = paired(a, b)
    assert names(found) == [("x", "x", "x"), ("x", "x (exp_avg)", "x (exp_avg)")]
    assert found.only_a == ((Key("y", "param"), Key("y", "param")),)
    assert [key for key, _ in found.only_b] == [Key("x", "exp_avg_sq"), Key("z", "param")]


def test_a_buffer_is_a_parameter_where_a_format_does_not_tell() -> None:
    found = paired(checkpoint("w", ("seen", "buffer")), checkpoint("w", "seen"))
    assert names(found) == [("w", "w", "w"), ("seen", "seen (buffer)", "seen")]
    assert not found.only_a
    assert not found.only_b
    for roles in (["buffer"], ["param", "buffer"]):
        assert ("seen", "seen (buffer)", "seen") in names(
            paired(checkpoint("w", ("seen", "buffer")), checkpoint("w", "seen"), roles=roles)
        )


def test_a_tied_name_may_be_held_by_either() -> None:
    a = checkpoint("embed", ("embed", "exp_avg"), aliases={"head": "embed"})
    b = checkpoint("head", ("head", "exp_avg"), aliases={"embed": "head"})
    found = paired(a, b)
    assert names(found) == [
        ("embed", "embed", "head"),
        ("embed", "embed (exp_avg)", "head (exp_avg)"),
    ]
    assert (found.only_a, found.only_b, found.notes) == ((), (), ())


def test_a_tied_name_is_compared_with_the_copy_of_the_other() -> None:
    found = paired(checkpoint("embed", aliases={"head": "embed"}), checkpoint("embed", "head"))
    assert names(found) == [("embed", "embed", "embed"), ("head", "embed", "head")]
    assert not found.only_b


def test_a_tied_name_that_one_side_lacks_is_a_note() -> None:
    found = paired(checkpoint("embed", aliases={"head": "embed"}), checkpoint("embed"))
    assert names(found) == [("embed", "embed", "embed")]
    assert found.notes == ("A has 1 tied name that B does not have: head",)
    other = paired(checkpoint("head"), checkpoint("embed", aliases={"head": "embed"}))
    assert names(other) == [("head", "head", "embed")]
    assert (other.only_b, other.notes) == (
        (),
        ("B has 1 tied name that A does not have: embed",),
    )


def test_16_bit_weights_are_compared_with_the_master_where_there_are_none() -> None:
    a, b = checkpoint("w", ("w", "param16")), checkpoint("w")
    for pairing, ends in (
        (paired(a, b), ("w (param16)", "w")),
        (paired(b, a), ("w", "w (param16)")),
    ):
        copy = next(pair for pair in pairing.pairs if pair.is_copy)
        assert (copy.role, str(copy.a), str(copy.b)) == ("param16", *ends)
        assert not pairing.only_a
        assert not pairing.only_b
    assert not any(pair.is_copy for pair in paired(a, a).pairs)


def test_roles_and_names_are_chosen() -> None:
    a = checkpoint("layers.0.w", "layers.1.w", ("layers.0.w", "exp_avg"), ("layers.0.w", "param16"))
    assert names(paired(a, a, roles=["exp_avg"])) == [
        ("layers.0.w", "layers.0.w (exp_avg)", "layers.0.w (exp_avg)")
    ]
    assert [n for n, *_ in names(paired(a, a, include=["*.1.*"]))] == ["layers.1.w"]
    with pytest.raises(BadRequest, match="their roles are exp_avg, param, param16"):
        paired(a, a, roles=["momentum_buffer"])


def test_a_rule_is_for_the_side_whose_names_it_matches() -> None:
    a, b = checkpoint("module.w", "module.v"), checkpoint("w", "v")
    assert names(paired(a, b, r"^module\.=")) == [("w", "module.w", "w"), ("v", "module.v", "v")]
    assert names(paired(b, a, r"^module\.=")) == [("w", "w", "module.w"), ("v", "v", "module.v")]
    assert renamed_sides(a, b, [parse_rule("nothing=x")])[2] == [
        "no name in A or B matches --rename 'nothing'"
    ]


def test_names_that_become_one_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"a\.w and b\.w would both become w"):
        paired(checkpoint("a.w", "b.w"), checkpoint("w"), r"^[ab]\.=")


NAMES = {
    "model.embed_tokens.weight": (8, 4),
    "model.layers.0.mlp.weight": (4, 4),
    "model.layers.0.norm.weight": (4,),
    "model.layers.1.mlp.weight": (4, 4),
    "model.layers.1.norm.weight": (4,),
    "lm_head.weight": (8, 4),
}


def renamed(names: dict[str, tuple[int, ...]], rule: str) -> dict[str, tuple[int, ...]]:
    new_name = name_function((), [parse_rule(rule)])
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
