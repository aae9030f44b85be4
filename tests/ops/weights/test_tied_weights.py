"""Where a run's two names of one tensor stay one: where the model's config ties them again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ops.weights.test_restore_hub_layout import written
from zerotools.core.checkpoint import Key
from zerotools.ops.weights.tied_weights import resolve_aliases

HEAD = Key("lm_head.weight", "param")


@pytest.mark.parametrize(
    ("config", "is_written"),
    [
        ({"model_type": "llama", "tie_word_embeddings": True}, False),
        ({"model_type": "llama"}, True),
        ({"model_type": "gemma2"}, False),
        ({"model_type": "gemma2", "tie_word_embeddings": False}, True),
        ([], True),
    ],
)
def test_the_config_decides_also_where_it_is_silent(
    config: Any, is_written: bool, tmp_path: Path
) -> None:
    source = written(tmp_path / "source", {"embed.weight": np.ones((2, 3))})
    (tmp_path / "config.json").write_text(json.dumps(config))
    tied = replace(
        source,
        aliases={HEAD.name: "embed.weight"},
        model_sidecars={"config.json": tmp_path / "config.json"},
    )
    found, (note,) = resolve_aliases(tied)
    assert (HEAD in found.tensors) is is_written
    assert ("as config.json says" in note) is not is_written
    kept, _ = resolve_aliases(tied, keep=True)
    assert HEAD in kept.tensors


@pytest.mark.parametrize("holder", ["lm_head.weight", "model.embed_tokens.weight"])
def test_the_tensor_gets_the_name_that_the_others_are_tied_to(holder: str, tmp_path: Path) -> None:
    names = {"lm_head.weight", "model.embed_tokens.weight"}
    (alias,) = names - {holder}
    source = written(tmp_path / "source", {holder: np.ones((2, 3))})
    tied = replace(source, aliases={alias: holder})
    ties = {"lm_head.weight": "model.embed_tokens.weight"}
    found, (note,) = resolve_aliases(tied, ties=ties)
    assert [key.name for key in found.tensors] == ["model.embed_tokens.weight"]
    assert note.endswith("as config.json says: lm_head.weight = model.embed_tokens.weight")
    untied, _ = resolve_aliases(tied, ties={})
    assert {key.name for key in untied.tensors} == names


def test_names_that_the_model_does_not_tie_are_all_written(tmp_path: Path) -> None:
    names = ["model.embed_tokens.weight", "layers.0.weight"]
    source = written(tmp_path / "source", {name: np.ones((2, 3)) for name in names})
    tied = replace(
        source,
        aliases={"lm_head.weight": names[0], "layers.1.weight": names[1]},
    )
    found, _ = resolve_aliases(tied, ties={"lm_head.weight": names[0]})
    assert {key.name for key in found.tensors} == {*names, "layers.1.weight"}
