"""Every map that is shipped, against models of transformers and the formulas of other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.maps import oracles
from tests.maps.models import CONFIGS, saved
from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.maps.hub_tensor_names import names_of_model
from zerotools.maps.model_layout import layout_of_model
from zerotools.maps.shipped_maps import map_of_model, shipped_maps
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.convert_layout import MapRequest, mapped_checkpoint
from zerotools.ops.weights.match_names_to_layout import shapes_of

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny model, and the directory that `save_pretrained` wrote."""
    folder = tmp_path_factory.mktemp("model") / request.param
    return request.param, saved(request.param, folder), folder


def arrays_of(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    types = dict.fromkeys(checkpoint.tensors, dtypes.FLOAT32)
    return {key.name: array for key, array in load_tensors(checkpoint, types).items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    assert set(one) == set(other)
    return all(
        one[name].shape == other[name].shape and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def test_the_map_is_there_and_back_again_in_every_byte(model: Any) -> None:
    _, _, folder = model
    config = json.loads((folder / "config.json").read_text())
    source = formats.read(folder)
    before, tried = arrays_of(source), 0
    names = names_of_model(config, is_tied=bool(config.get("tie_word_embeddings")))
    assert names is not None
    assert not names.faults_of(shapes_of(source)).count
    for name, layout in map_of_model(config).layouts.items():
        try:
            if layout_of_model(map_of_model(config), name, config).computed:
                continue  # its weights are multiplied, not only moved
        except BadRequest:  # the layout is for other models
            continue
        there = mapped_checkpoint(source, MapRequest(to=name))
        assert there.is_changed, layout.about
        back = mapped_checkpoint(there.checkpoint, MapRequest(to="hf"))
        assert any(f"layout {layout.same_as or name}" in note for note in back.notes)
        assert same(arrays_of(back.checkpoint), before)
        tried += 1
    assert tried


def test_megatron_has_what_the_formulas_of_megatron_give(model: Any) -> None:
    _, live, folder = model
    config, source = live.config, formats.read(folder)
    made = arrays_of(mapped_checkpoint(source, MapRequest(to="megatron")).checkpoint)
    vocabulary = ("embedding.word_embeddings.weight", "output_layer.weight")
    for name in set(made) & set(vocabulary):
        assert made[name].shape[0] == 128
        assert (made[name][100:] == made[name][99]).all()
        made[name] = made[name][:100]
    wanted = oracles.megatron(arrays_of(source), config)
    if not any(name.startswith("decoder.layers.0.") for name in made):
        wanted = oracles.stacked(wanted, config.num_hidden_layers)
    assert same(made, wanted)


def test_fused_experts_are_those_of_the_live_model(model: Any) -> None:
    _, live, folder = model
    source = formats.read(folder)
    config = json.loads((folder / "config.json").read_text())
    if "hf-fused" not in map_of_model(config).layouts:
        return
    made = arrays_of(mapped_checkpoint(source, MapRequest(to="hf-fused")).checkpoint)
    assert same(made, {name: value.numpy() for name, value in live.state_dict().items()})


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_meta_and_torchtitan_have_rope_in_pairs(tmp_path: Path, name: str) -> None:
    live = saved(name, tmp_path)
    source = formats.read(tmp_path)
    for layout in ("meta", "titan"):
        made = arrays_of(mapped_checkpoint(source, MapRequest(to=layout)).checkpoint)
        assert same(made, oracles.meta(arrays_of(source), live.config))


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3-moe"])
def test_maxtext_has_what_its_formulas_give(tmp_path: Path, name: str) -> None:
    live = saved(name, tmp_path / "hf")
    source = formats.read(tmp_path / "hf")
    for layout in ("maxtext", "maxtext-pairs")[: 2 if name == "llama" else 1]:
        there = mapped_checkpoint(source, MapRequest(to=layout)).checkpoint
        wanted = oracles.maxtext(arrays_of(source), live.config, pairs=layout != "maxtext")
        assert same(arrays_of(there), wanted)


@pytest.mark.parametrize("layout", ["maxtext", "maxtext-pairs"])
def test_queries_of_maxtext_are_multiplied_by_the_root_of_a_head(
    tmp_path: Path, layout: str
) -> None:
    saved("llama", tmp_path / "hf")
    for source, out, request in (
        ("hf", "there", MapRequest(to=layout)),
        ("there", "back", MapRequest(to="hf", source=layout)),
    ):
        options = consolidate.Options(dtype="fp32", mapping=request, check_names=False)
        conversion = consolidate.prepare_export(tmp_path / source, tmp_path / out, options)
        perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    first, again = (arrays_of(formats.read(tmp_path / each)) for each in ("hf", "back"))
    for number in range(2):
        query = f"model.layers.{number}.self_attn.q_proj.weight"
        scaled = first[query] * np.float32(1 / np.sqrt(8)) * np.float32(np.sqrt(8))
        assert np.array_equal(again.pop(query), scaled)
        del first[query]
    assert same(again, first)


def test_olmo_core_has_names_of_its_own(tmp_path: Path) -> None:
    saved("olmo2", tmp_path)
    source = formats.read(tmp_path)
    made = arrays_of(mapped_checkpoint(source, MapRequest(to="olmo-core")).checkpoint)
    assert same(made, oracles.olmo_core(arrays_of(source)))


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama", "titan"),
        ("qwen3-moe-mixed", "megatron"),
        ("mixtral", "hf-fused"),
        ("olmo2", "olmo-core"),
        ("glm4", "megatron"),
    ],
)
def test_a_model_that_came_back_computes_the_same(tmp_path: Path, name: str, layout: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    live = saved(name, tmp_path / "hf")
    for source, out, to in (("hf", "there", layout), ("there", "back", "hf")):
        options = consolidate.Options(dtype="fp32", mapping=MapRequest(to=to))
        conversion = consolidate.prepare_export(tmp_path / source, tmp_path / out, options)
        perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(live(tokens).logits, again(tokens).logits)


def test_every_shipped_map_has_a_model_here() -> None:
    kinds = {kind for kind, _ in CONFIGS.values()}
    assert {kind for each in shipped_maps().values() for kind in each.model_types} == kinds
