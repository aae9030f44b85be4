"""A layout is found under wrapped names and under either name of a tie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.maps.hub_models import written
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadRequest
from zerotools.core.training_state import ParamGroup, TrainingState
from zerotools.ops.weights.layout_mapping import MapRequest, mapped_checkpoint, mapped_training
from zerotools.ops.weights.layout_search import possible_namings
from zerotools.ops.weights.select_and_rename import rename_tensors

TIED: dict[str, Any] = {"tie_word_embeddings": True}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def llama(folder: Path, **config: Any) -> Checkpoint:
    written(folder, **config)
    return formats.read(folder)


def without(checkpoint: Checkpoint, name: str) -> Checkpoint:
    tensors = {key: each for key, each in checkpoint.tensors.items() if key.name != name}
    return replace(checkpoint, tensors=tensors)


def test_a_head_alone_is_the_embedding_where_they_are_tied(tmp_path: Path) -> None:
    source = llama(tmp_path / "tied", **TIED)
    made = mapped_checkpoint(without(source, EMBEDDING), MapRequest(to="meta"))
    assert Key("tok_embeddings.weight", "param") in made.checkpoint.tensors
    assert made.origins["tok_embeddings.weight"] == (HEAD,)
    untied = llama(tmp_path / "untied")
    with pytest.raises(BadRequest, match=EMBEDDING):
        mapped_checkpoint(without(untied, EMBEDDING), MapRequest(to="meta"))


@pytest.mark.parametrize("to", ["meta", "hf"])
def test_wrappers_come_off_and_param_groups_find_their_weights(tmp_path: Path, to: str) -> None:
    source = rename_tensors(llama(tmp_path / "run"), lambda name: f"module.{name}")
    names = tuple(key.name for key in source.tensors)
    training = TrainingState(groups=(ParamGroup(names, {"lr": 0.1}),))
    made = mapped_checkpoint(source, MapRequest(to=to), training)
    assert made.is_changed
    assert "removed module. from the names, to match the layouts of the map" in made.notes
    (group,) = mapped_training(source, training, made.origins).groups
    assert len(group.params) == len(names) == len(made.checkpoint.tensors)
    assert set(group.params) == {key.name for key in made.checkpoint.tensors}


def test_names_that_fit_no_layout_are_refused_as_they_are(tmp_path: Path) -> None:
    source = rename_tensors(llama(tmp_path / "run"), lambda name: f"module.x{name}y")
    with pytest.raises(BadRequest, match=r"unknown \(module\.x"):
        mapped_checkpoint(source, MapRequest(to="meta"))


NAMES = ("model.embed.weight", "model.layers.0.q.weight", "head.weight")


def made(names: list[str]) -> list[tuple[list[str], tuple[str, ...]]]:
    return [
        ([way.new_name(name) for name in names], way.removed) for way in possible_namings(names)
    ]


@pytest.mark.parametrize(
    "wrapper",
    ["module.", "_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.", "policy."],
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
