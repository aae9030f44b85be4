from __future__ import annotations

import pytest

from zerotools.ops.weights.unwrap_names import possible_namings

NAMES = ("model.embed.weight", "model.layers.0.q.weight", "head.weight")


def made(names: list[str]) -> list[tuple[list[str], tuple[str, ...]]]:
    return [
        ([way.new_name(name) for name in names], way.removed) for way in possible_namings(names)
    ]


@pytest.mark.parametrize(
    "wrapper",
    [
        "module.",
        "_orig_mod.",
        "_forward_module.",
        "_fsdp_wrapped_module.",
        "policy.",
        "pretrained_model.",
    ],
)
def test_a_wrapper_comes_off(wrapper: str) -> None:
    ways = made([wrapper + name for name in NAMES])
    assert ways[0] == ([wrapper + name for name in NAMES], ())
    assert ways[1] == ([*NAMES], (wrapper,))


def test_wrappers_come_off_anywhere() -> None:
    names = [
        "module.model.embed._orig_mod.weight",
        "module.model.layers.0._checkpoint_wrapped_module.q.weight",
        "module.head.weight",
    ]
    assert made(names)[1] == (
        [*NAMES], ("_checkpoint_wrapped_module.", "_orig_mod.", "module.")
    )  # fmt: skip


def test_words_that_all_names_begin_with_come_off_one_by_one() -> None:
    names = ["a.b.c.d.x.weight", "a.b.c.d.y.weight"]
    removed = [removed for _, removed in made(names)]
    assert removed == [(), ("a.",), ("a.b.",), ("a.b.c.",)]
    assert made(names)[2][0] == ["c.d.x.weight", "c.d.y.weight"]


def test_two_tensors_never_get_one_name() -> None:
    assert made(["module.x.weight", "x.weight"]) == [(["module.x.weight", "x.weight"], ())]
    assert made(["module"]) == [(["module"], ())]
