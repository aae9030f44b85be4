"""A LoRA run in every command that writes a model: merged as `consolidate` merges it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

import zerotools
from tests.ops.exports import BF16, model, weights_of
from tests.ops.weights.test_add_base_model_weights import PREFIX, WEIGHTS, adapter, base
from zerotools.core.errors import BadRequest, Unsupported

ADAPTER = "adapter_model.safetensors"


def convert(source: Path, out: Path, **options: Any) -> zerotools.ConversionResult:
    return zerotools.convert(source, out, to="safetensors", **options)


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """The base model, in bf16."""
    few = {name: tensor.astype(BF16) for name, tensor in WEIGHTS.items()}
    return base(tmp_path / "base", **few)


def test_convert_writes_what_consolidate_writes(tmp_path: Path, given: Path) -> None:
    run, one, other = adapter(tmp_path / "run"), tmp_path / "one", tmp_path / "other"
    zerotools.consolidate(run, one, base=given)
    convert(run, other, base=given, verify=True)
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert weights_of(other)["layers.0.q.weight"].dtype == BF16, "sums have the base's type"
    assert (other / "config.json").is_file()
    convert(run, tmp_path / "wide", base=given, dtype="fp32")
    zerotools.consolidate(run, tmp_path / "also", base=given, dtype="fp32")
    assert [a.tobytes() for a in weights_of(tmp_path / "wide").values()] == [
        a.tobytes() for a in weights_of(tmp_path / "also").values()
    ]


def test_convert_merges_a_run_that_holds_its_base(tmp_path: Path, given: Path) -> None:
    held = {
        f"{PREFIX}.q.base_layer.weight": WEIGHTS["layers.0.q.weight"],
        f"{PREFIX}.norm.weight": WEIGHTS["layers.0.norm.weight"],
    }
    run = adapter(tmp_path / "run", **held)
    done = convert(run, tmp_path / "out", config_dir=given)
    assert any("adapters are added to 1 weight, scaled by 2" in note for note in done.notes)
    found = weights_of(tmp_path / "out")
    assert found.keys() == WEIGHTS.keys()
    assert found["layers.0.q.weight"].dtype == np.float32
    assert found["layers.0.q.weight"].tobytes() != held[f"{PREFIX}.q.base_layer.weight"].tobytes()


def test_convert_exports_an_adapter_as_consolidate_does(tmp_path: Path) -> None:
    run = adapter(tmp_path / "run")
    zerotools.consolidate(run, tmp_path / "one", adapter_only=True)
    convert(run, tmp_path / "other", adapter_only=True)
    for name in (ADAPTER, "adapter_config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    with pytest.raises(BadRequest, match="does not take --max-shard-size; leave it out"):
        convert(run, tmp_path / "no", adapter_only=True, max_shard_size=2**20)


@pytest.mark.parametrize("to", ["dcp", "deepspeed", "job"])
def test_formats_of_whole_runs_take_no_base(to: str, tmp_path: Path, given: Path) -> None:
    with pytest.raises(BadRequest, match=rf"--to {to} does not take --base; leave it out"):
        zerotools.convert(adapter(tmp_path / "run"), tmp_path / "out", to=to, base=given)


def test_a_run_without_its_base_is_refused_with_both_commands(tmp_path: Path) -> None:
    run = adapter(tmp_path / "run")
    said = r"consolidate .*run OUT --base org/base, or export .* consolidate .*run OUT --adapter-"
    with pytest.raises(BadRequest, match=said):
        convert(run, tmp_path / "out")
    with pytest.raises(BadRequest, match=said), zerotools.serve(run):
        pass


def fetched(served: zerotools.ServedCheckpoint, name: str) -> bytes:
    headers = {"Authorization": f"Bearer {served.token}"}
    asked = urllib.request.Request(f"{served.url}/{name}", headers=headers)
    with urllib.request.urlopen(asked) as answer:
        return bytes(answer.read())


def test_serve_merges_and_exports_alike(tmp_path: Path, given: Path) -> None:
    run = adapter(tmp_path / "run")
    zerotools.consolidate(run, tmp_path / "out", base=given)
    with zerotools.serve(run, base=given) as served:
        found = fetched(served, "model.safetensors")
    assert found == (tmp_path / "out" / "model.safetensors").read_bytes()
    with zerotools.serve(run, adapter_only=True) as served:
        assert set(served.files) == {ADAPTER, "adapter_config.json"}
        assert len(load(fetched(served, ADAPTER))) == 2


IA3 = {
    "base_model.model.layers.0.q.base_layer.weight": WEIGHTS["layers.0.q.weight"],
    "base_model.model.layers.0.q.ia3_l.default": np.ones((6, 1), np.float32),
}
NOT_LORA = {
    "a run of IA3": IA3,
    "an adapter of IA3": {"base_model.model.layers.0.q.ia3_l": np.ones((6, 1), np.float32)},
    "a kind without a known name": {
        "base_model.model.layers.0.q.base_layer.weight": WEIGHTS["layers.0.q.weight"],
        "base_model.model.layers.0.q.new_kind.default": np.ones(6, np.float32),
    },
    "AdaLoRA": {
        f"base_model.model.layers.0.q.lora_{half}": np.ones((2, 2), np.float32) for half in "ABE"
    },
    "prompt tuning": {"prompt_embeddings": np.ones((3, 6), np.float32)},
}


@pytest.mark.parametrize("kind", NOT_LORA)
def test_an_adapter_that_is_not_lora_is_refused(kind: str, tmp_path: Path, given: Path) -> None:
    run = model(tmp_path / "run", NOT_LORA[kind])
    refused = r"is not LoRA, and .*; merge the adapter with PEFT's merge_and_unload"
    for more in ({}, {"base": given}):
        with pytest.raises(Unsupported, match=refused):
            zerotools.consolidate(run, tmp_path / "out", **more)
        with pytest.raises(Unsupported, match=refused):
            convert(run, tmp_path / "out", **more)
        with pytest.raises(Unsupported, match=refused):
            zerotools.salvage(run, tmp_path / "out", **more)
    with pytest.raises(Unsupported, match="not part of a LoRA adapter"):
        zerotools.consolidate(run, tmp_path / "out", adapter_only=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "names",
    [
        ["prompt_encoder.mask_embed.weight", "shared_embedding.weight"],
        ["base_layer.0.weight", "level0.0.weight"],
        ["body.base_layer.weight", "prompt_embeddings"],
        [
            "road_net.weight",
            "base_model.model.layers.0.weight",
            "base_model.head.base_layer.weight",
        ],
    ],
)
def test_a_model_that_is_no_adapter_is_exported(names: list[str], tmp_path: Path) -> None:
    run = model(tmp_path / "run", {name: np.ones((2, 2), np.float32) for name in names})
    zerotools.consolidate(run, tmp_path / "out")
    assert weights_of(tmp_path / "out").keys() == {*names}


@pytest.mark.torch
@pytest.mark.full
@pytest.mark.dear(30, "transformers is imported three times, twice to try the names")
def test_a_head_apart_from_an_embedding_that_two_modules_share(tmp_path: Path) -> None:
    from transformers import BartConfig, BartForConditionalGeneration

    sizes: dict[str, Any] = {"vocab_size": 6, "d_model": 4, "max_position_embeddings": 8}
    for part in ("encoder", "decoder"):
        sizes |= {f"{part}_layers": 1, f"{part}_attention_heads": 1, f"{part}_ffn_dim": 4}
    BartForConditionalGeneration(BartConfig(**sizes)).save_pretrained(tmp_path / "base")
    halves = {"lora_A": np.ones((2, 4), np.float32), "lora_B": np.ones((6, 2), np.float32)}
    run = model(
        tmp_path / "run",
        {f"base_model.model.lm_head.{half}.weight": each for half, each in halves.items()},
        adapter_config__json=json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}),
    )
    zerotools.consolidate(run, tmp_path / "out", base=tmp_path / "base", dtype="fp32")
    shared = weights_of(tmp_path / "base")["model.shared.weight"]
    made, said = BartForConditionalGeneration.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(said.values()), said
    found = {name: each.numpy() for name, each in made.state_dict().items()}
    np.testing.assert_allclose(found["lm_head.weight"], shared + 2, rtol=1e-6)
    for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"):
        np.testing.assert_array_equal(found[f"model.{name}.weight"], shared)
