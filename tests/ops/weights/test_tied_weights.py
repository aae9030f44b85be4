"""Where a run's two names of one tensor stay one: where the model's config ties them again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zerotools
from tests.ops.exports import export, model, noise
from tests.ops.weights.test_add_base_model_weights import PREFIX, WEIGHTS, adapter
from tests.ops.weights.test_restore_hub_layout import written
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
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


EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
TIED: dict[str, Any] = {"model_type": "mine", "tie_word_embeddings": True}
NOTE = "config.json is written with tie_word_embeddings = false, like the weights"


def exported_config(source: Path, out: Path, **options: Any) -> tuple[dict[str, Any], bool]:
    """The config of an export, and whether a note says that it was changed."""
    conversion = prepare_export(source, out, Options(**options))
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    config: dict[str, Any] = json.loads((out / "config.json").read_text())
    return config, NOTE in conversion.notes


def saved(directory: Path, head: Any, config: dict[str, Any] = TIED) -> Path:
    tensors = {EMBEDDING: noise(200, 4), LM_HEAD: head}
    return model(directory, tensors, config__json=json.dumps(config))


@pytest.mark.parametrize("row", [0, 100, 199])
def test_a_head_that_differs_is_not_tied(row: int, tmp_path: Path) -> None:
    head = noise(200, 4)
    head[row] += 1
    source = saved(tmp_path / "in", head)
    config, is_said = exported_config(source, tmp_path / "out")
    assert config["tie_word_embeddings"] is False
    assert is_said
    done = zerotools.convert(source, tmp_path / "converted", to="safetensors")
    assert NOTE in done.notes
    tree = json.loads((tmp_path / "converted" / "config.json").read_text())
    assert tree["tie_word_embeddings"] is False


def test_a_copy_of_the_embedding_stays_tied(tmp_path: Path) -> None:
    embedding = noise(200, 4)
    embedding[0, 0] = np.nan
    tensors = {EMBEDDING: embedding, LM_HEAD: embedding.copy()}
    source = model(tmp_path / "in", tensors, config__json=json.dumps(TIED))
    config, is_said = exported_config(source, tmp_path / "out")
    assert config["tie_word_embeddings"] is True
    assert not is_said


def test_a_language_model_that_is_tied_by_its_class_is_untied_too(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    source = saved(tmp_path / "in", noise(200, 4, seed=1), config)
    found, is_said = exported_config(source, tmp_path / "out", check_names=False)
    assert is_said
    assert found["tie_word_embeddings"] is found["text_config"]["tie_word_embeddings"] is False


@pytest.mark.parametrize("kind", ["t5", "longt5"])
def test_a_config_that_also_scales_the_outputs_is_kept(kind: str, tmp_path: Path) -> None:
    config = {"model_type": kind, "tie_word_embeddings": True}
    source = saved(tmp_path / "in", noise(200, 4, seed=1), config)
    done = zerotools.consolidate(source, tmp_path / "out", no_check_names=True)
    assert any("keeps tie_word_embeddings, which also scales" in note for note in done.notes)
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert found["tie_word_embeddings"] is True


@pytest.mark.parametrize(
    ("head", "config"),
    [
        (noise(200, 4, seed=1), {"model_type": "mine", "tie_word_embeddings": False}),
        (noise(200, 3), TIED),
        (np.ones((200, 4), np.int32), TIED),
    ],
)
def test_other_configs_and_heads_are_left_alone(
    head: Any, config: dict[str, Any], tmp_path: Path
) -> None:
    found, is_said = exported_config(saved(tmp_path / "in", head, config), tmp_path / "out")
    assert found["tie_word_embeddings"] is config["tie_word_embeddings"]
    assert not is_said


def test_damage_is_reported_by_the_export_itself(tmp_path: Path) -> None:
    source = saved(tmp_path / "in", noise(200, 4, seed=1))
    file = source / "model.safetensors"
    conversion = prepare_export(source, tmp_path / "out", Options())
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadFile):
        perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    with pytest.raises(BadFile, match=r"model\.safetensors"):
        prepare_export(source, tmp_path / "out", Options())


@pytest.mark.parametrize("place", ["run", "base"])
@pytest.mark.parametrize("is_copy", [False, True])
def test_an_adapter_is_merged_into_both_as_they_are(
    place: str, is_copy: bool, tmp_path: Path
) -> None:
    """Of the weights that were not trained, the base model of the run may have two, too."""
    tables = {"embed_tokens.weight": noise(7, 6, seed=4)}
    tables[LM_HEAD] = tables["embed_tokens.weight"].copy() if is_copy else noise(7, 6, seed=5)
    if place == "base":
        source = adapter(tmp_path / "run")
        given = model(tmp_path / "base", {**WEIGHTS, **tables}, config__json=json.dumps(TIED))
        merged = export(source, tmp_path / "out", base=given, dtype="fp32")
    else:
        own = {f"base_model.model.{name}": values for name, values in tables.items()}
        own |= {f"{PREFIX}.q.base_layer.weight": WEIGHTS["layers.0.q.weight"]}
        own |= {f"{PREFIX}.norm.weight": WEIGHTS["layers.0.norm.weight"]}
        source = adapter(tmp_path / "run", **own)
        (source / "config.json").write_text(json.dumps(TIED))
        merged = export(source, tmp_path / "out", dtype="fp32")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is is_copy
    assert (LM_HEAD in merged) is not is_copy
    for name in merged.keys() & tables.keys():
        np.testing.assert_array_equal(merged[name], tables[name])
