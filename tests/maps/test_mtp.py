"""Layers that predict further tokens (MTP), which a checkpoint has or lacks as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.maps import oracles
from tests.maps.models import saved, with_mtp
from tests.maps.test_families import arrays_of, same
from zerotools import formats
from zerotools.core.errors import BadRequest
from zerotools.maps.detect_layout import check_complete, detect_layout
from zerotools.maps.shipped_maps import map_of_model
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.convert_layout import MapRequest, mapped_checkpoint

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
COPIES = ("model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight")
NO_PADDING = {"vocab_multiple": 1}


@pytest.fixture(scope="module", params=["deepseek-v3", "glm4-moe"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A live model, its directory with an MTP layer, and the tensors in it."""
    folder = tmp_path_factory.mktemp("model") / request.param
    live = saved(request.param, folder)
    return live, folder, {name: value.numpy() for name, value in with_mtp(folder).items()}


def test_megatron_has_it_as_its_bridge_makes_it_and_back(model: Any, tmp_path: Path) -> None:
    live, folder, tensors = model
    there = mapped_checkpoint(formats.read(folder), MapRequest(to="megatron", arguments=NO_PADDING))
    assert same(arrays_of(there.checkpoint), oracles.megatron(tensors, live.config))
    assert sum("the second copy of" in note for note in there.notes) == 2
    back = mapped_checkpoint(there.checkpoint, MapRequest(to="hf"))
    plain = {name: value for name, value in tensors.items() if name not in COPIES}
    assert same(arrays_of(back.checkpoint), plain)
    assert back.checkpoint.aliases == {
        COPIES[0]: "model.embed_tokens.weight",
        COPIES[1]: "lm_head.weight",
    }


def test_transformers_leaves_it_out_and_computes_the_same(model: Any, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    live, folder, tensors = model
    source = folder
    for name in ("megatron", "hf"):
        options = consolidate.Options(
            dtype="fp32", mapping=MapRequest(to=name), keep_aliases=name == "hf"
        )
        conversion = consolidate.prepare_export(source, tmp_path / name, options)
        perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
        source = tmp_path / name
    assert same(arrays_of(formats.read(source)), tensors), "the copies are not written out"
    again, report = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True)
    assert not report["missing_keys"]
    assert all(name.startswith("model.layers.2.") for name in report["unexpected_keys"])
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(live(tokens).logits, again(tokens).logits)


def test_a_model_without_it_is_whole_and_one_with_a_part_of_it_is_not(model: Any) -> None:
    _, folder, tensors = model
    config = json.loads((folder / "config.json").read_text())
    assert config["num_nextn_predict_layers"] == 1
    family, shapes = map_of_model(config), {n: v.shape for n, v in tensors.items()}
    without = {n: s for n, s in shapes.items() if not n.startswith("model.layers.2.")}
    found = detect_layout(family, config, {}, without)
    assert found.layout.name == "hf"
    assert found.absent_counts == {"mtp": 1}
    assert found.given == {"mtp": 0}
    for name in ("model.layers.2.eh_proj.weight", "model.layers.2.mlp.experts.3.up_proj.weight"):
        part = {n: s for n, s in shapes.items() if n != name}
        with pytest.raises(BadRequest, match=f"lacks 1 tensor .{name}"):
            detect_layout(family, config, {}, part)
    wrong = {**shapes, COPIES[0]: (7, 32)}
    with pytest.raises(BadRequest, match=rf"{COPIES[0]} has shape \[7, 32\]"):
        check_complete(detect_layout(family, config, {}, wrong), family)
    with pytest.raises(BadRequest, match=r"lacks .*model\.layers\.3\."):
        detect_layout(family, config, {"mtp": 2}, shapes)
    assert detect_layout(family, {**config, "num_nextn_predict_layers": 0}, {"mtp": 1}, shapes)


def test_a_model_that_lacks_it_says_so(tmp_path: Path) -> None:
    saved("glm4-moe", tmp_path)
    there = mapped_checkpoint(formats.read(tmp_path), MapRequest(to="megatron"))
    assert any("1 layer of mtp, but the checkpoint has none" in note for note in there.notes)
    assert not any(key.name.startswith("mtp.") for key in there.checkpoint.tensors)
