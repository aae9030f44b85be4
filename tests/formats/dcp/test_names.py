from __future__ import annotations

import pytest

from zerotools.core.checkpoint import Key
from zerotools.formats.dcp.names import Names, keys_of


@pytest.mark.parametrize(
    ("paths", "flat", "key"),
    [
        ([("model.a.w",), ("optim.a.w.step",)], "model.a.w", Key("a.w", "param")),
        ([("model.a.w",), ("optim.a.w.step",)], "optim.a.w.step", Key("a.w", "step")),
        ([("model", "a.w"), ("x",)], "model.a.w", Key("a.w", "param")),
        ([("model", "model.a.w")], "model.model.a.w", Key("model.a.w", "param")),
        (
            [("optimizer", "state", "a.w", "exp_avg")],
            "optimizer.state.a.w.exp_avg",
            Key("a.w", "exp_avg"),
        ),
        ([("optim", "a.w", "my.state")], "optim.a.w.my.state", Key("a.w", "my.state")),
        (
            [("optimizer", "param_groups", 0, "lr")],
            "optimizer.param_groups.0.lr",
            Key("optimizer.param_groups.0.lr", "state"),
        ),
        ([("train_state", "step")], "train_state.step", Key("train_state.step", "state")),
        ([("model.l.0.w",), ("lm_head.w",)], "model.l.0.w", Key("model.l.0.w", "param")),
        ([("l.0.w",), ("optimizer", "state", "x", "step")], "l.0.w", Key("l.0.w", "param")),
    ],
)  # fmt: skip
def test_what_a_flat_key_means(paths: list[tuple[str, ...]], flat: str, key: Key) -> None:
    known = {".".join(map(str, path)): path for path in paths}
    assert Names.of(known, known).key_of(flat) == key


def test_without_paths_a_checkpoint_of_sections_is_split() -> None:
    assert Names.of(["model.a", "optimizer.state.a.step"], None).key_of("model.a").name == "a"
    assert Names.of(["model.a", "head"], None).key_of("model.a").name == "model.a"


def test_two_flat_keys_never_become_one() -> None:
    known = {"a.w": ("a.w",), "model.a.w": ("model", "a.w")}
    found = keys_of(known, Names.of(known, known))
    assert len(set(found.values())) == 2


def test_an_optimizer_below_optim_is_known_by_its_groups() -> None:
    keys = {"optim.state.a.w.step": ("optim", "state.a.w.step")}
    assert Names.of(keys, keys).key_of("optim.state.a.w.step") == Key("state.a.w", "step")
    keys["optim.param_groups.a.w.lr"] = ("optim", "param_groups.a.w.lr")
    assert Names.of(keys, keys).key_of("optim.state.a.w.step") == Key("a.w", "step")
