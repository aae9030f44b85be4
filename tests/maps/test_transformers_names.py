"""Names in transformers' memory and on the Hub: save_pretrained is the judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import zerotools
from tests.maps.vision_models import MODELS, made
from tests.matrices import FULL
from zerotools.core.errors import BadRequest
from zerotools.maps.transformers_names import PREFIX_MAPS, PrefixMap, prefix_map_of

QWEN2, LLAVA = PREFIX_MAPS[:2]
IN_MEMORY = {
    "qwen2_vl": ["model.language_model.norm.weight", "model.visual.x", "lm_head.weight"],
    "llava": ["model.language_model.norm.weight", "model.vision_tower.x", "lm_head.weight"],
}
ON_HUB = {
    "qwen2_vl": ["model.norm.weight", "visual.x", "lm_head.weight"],
    "llava": [
        "language_model.model.norm.weight",
        "vision_tower.x",
        "language_model.lm_head.weight",
    ],
}
ALWAYS = ("gemma3",)


def test_every_type_has_a_model() -> None:
    types = {kind for each in PREFIX_MAPS for kind in each.model_types}
    assert types == MODELS.keys()
    assert prefix_map_of({"model_type": "llama"}) is None


@pytest.mark.parametrize("names", [QWEN2, LLAVA], ids=lambda each: each.name)
def test_there_and_back(names: PrefixMap) -> None:
    memory, hub = IN_MEMORY[names.name], ON_HUB[names.name]
    assert (names.layout_of(memory), names.layout_of(hub)) == ("memory", "hf")
    assert [names.renamed(each, "hf") for each in memory] == hub
    assert [names.renamed(each, "memory") for each in hub] == memory


@pytest.mark.parametrize("names", [QWEN2, LLAVA], ids=lambda each: each.name)
def test_names_of_neither_layout_are_refused(names: PrefixMap) -> None:
    for strange in ([*IN_MEMORY[names.name], *ON_HUB[names.name]], ["module.lm_head.weight"]):
        if names is QWEN2 or len(strange) > 1:
            with pytest.raises(
                BadRequest, match=r"neither layout of the map .* is not a name in the layout mem"
            ):
                names.layout_of(strange)


@pytest.mark.torch
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ALWAYS else pytest.mark.full) for n in MODELS]
)
def test_the_names_of_the_hub_are_those_that_transformers_saves(tmp_path: Path, name: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    model = made(name)
    model.save_pretrained(tmp_path / "hub")
    (tmp_path / "memory").mkdir()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    save_file(state, tmp_path / "memory" / "model.safetensors")
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    (tmp_path / "memory" / "config.json").write_text(json.dumps(config))
    # transformers is asked in the full matrix alone, in a process that imports it for seconds.
    options: dict[str, Any] = {"dtype": "fp32", "no_check_names": not FULL}
    zerotools.consolidate(tmp_path / "memory", tmp_path / "out", map_to="hf", **options)
    zerotools.consolidate(tmp_path / "out", tmp_path / "back", map_to="memory", **options)
    saved = load_file(tmp_path / "hub" / "model.safetensors")
    for ours, theirs in (("out", saved), ("back", state)):
        found = load_file(tmp_path / ours / "model.safetensors")
        assert found.keys() == theirs.keys()
        assert all(torch.equal(found[key].float(), value.float()) for key, value in theirs.items())
