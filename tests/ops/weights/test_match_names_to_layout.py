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
from zerotools.ops.weights.convert_layout import MapRequest, mapped_checkpoint, mapped_training
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
    with pytest.raises(BadRequest, match=r"does not have \(module\.x"):
        mapped_checkpoint(source, MapRequest(to="meta"))
