"""A base model that is named for an adapter: on a disk or in a store, beside packed weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zerotools
from tests.io.stores.far import put_directory, served
from tests.ops.exports import export, model, noise
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.numeric.numpy_dtypes import Array

CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q"],
    "base_model_name_or_path": "org/base",
}  # fmt: skip
PREFIX = "base_model.model.layers.0"
WEIGHTS = {"layers.0.q.weight": noise(4, 6), "layers.0.norm.weight": noise(4, seed=3)}
DOWN, UP = noise(2, 6, seed=1), noise(4, 2, seed=2)
SUM = WEIGHTS["layers.0.q.weight"] + np.float32(2) * (UP @ DOWN)


def adapter(directory: Path, **more: Array) -> Path:
    """What a run leaves whose base is not in it, or `more` of it."""
    tensors = {f"{PREFIX}.q.lora_A.default.weight": DOWN, f"{PREFIX}.q.lora_B.default.weight": UP}
    return model(directory, {**tensors, **more}, adapter_config__json=json.dumps(CONFIG))


def base(directory: Path, **more: Array) -> Path:
    return model(directory, {**WEIGHTS, **more}, config__json="{}")


def check(found: dict[str, Array]) -> None:
    assert set(found) == set(WEIGHTS)
    np.testing.assert_allclose(found["layers.0.q.weight"], SUM, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found["layers.0.norm.weight"], WEIGHTS["layers.0.norm.weight"])


def test_run_and_base_may_lie_on_disks_and_in_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = {"run": adapter(tmp_path / "run"), "base": base(tmp_path / "base")}
    with served(monkeypatch) as store:
        far = {name: put_directory(store, path, f"deep/{name}") for name, path in near.items()}
        for number, (run, model_of) in enumerate(
            (run, each) for run in (near["run"], far["run"]) for each in (near["base"], far["base"])
        ):
            out = tmp_path / f"out-{number}"
            check(export(run, out, base=model_of, dtype="fp32"))
            assert (out / "config.json").is_file()


def test_a_run_without_its_base_is_told_both_commands(tmp_path: Path) -> None:
    run = adapter(tmp_path / "run")
    said = (
        r"names org/base\): it has no weights of layers; merge both with zerotools consolidate "
        r".*run OUT --base org/base, or export only the adapter with .*run OUT --adapter-only"
    )
    with pytest.raises(BadRequest, match=said):
        export(run, tmp_path / "out")
    other = model(tmp_path / "other", {"layers.0.k.weight": noise(4, 6)})
    with pytest.raises(BadRequest, match=r"is not the base .* layers.0.q.weight, which the base"):
        export(run, tmp_path / "out", base=other)
    with pytest.raises(BadRequest, match="this model has adapters; name the model that they were"):
        export(run, tmp_path / "out", base=run)


def test_weights_that_the_run_keeps_in_4_bits_are_those_of_the_base(tmp_path: Path) -> None:
    packed = {
        f"{PREFIX}.q.base_layer.weight": np.zeros((12, 1), np.uint8),
        f"{PREFIX}.q.base_layer.weight.absmax": noise(1),
        f"{PREFIX}.q.base_layer.weight.quant_map": noise(16),
        f"{PREFIX}.norm.weight": WEIGHTS["layers.0.norm.weight"],
    }
    run = adapter(tmp_path / "run", **packed)
    config = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadRequest, match=r"q.weight is packed as uint8 \[12, 1\], .* --base org/b"):
        export(run, tmp_path / "out")
    check(export(run, tmp_path / "out", base=base(tmp_path / "base"), dtype="fp32"))
    assert "quantization" not in (tmp_path / "out" / "config.json").read_text()


def test_what_a_run_trained_whole_is_its_own(tmp_path: Path) -> None:
    trained = noise(4, seed=9)
    run = adapter(tmp_path / "run", **{f"{PREFIX}.norm.weight": trained})
    with pytest.raises(BadRequest, match=r"layers.0.q.weight, which the base"):
        export(run, tmp_path / "out")
    found = export(run, tmp_path / "out", base=base(tmp_path / "base"), dtype="fp32")
    np.testing.assert_array_equal(found["layers.0.norm.weight"], trained)


def test_a_base_in_few_bits_is_refused(tmp_path: Path) -> None:
    few = base(tmp_path / "few", **{"z.weight_packed": np.zeros((4, 16), np.uint8)})
    config = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    (few / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        Unsupported, match="name the unquantised model, or make it first: zerotools conso"
    ):
        export(adapter(tmp_path / "run"), tmp_path / "out", base=few)


def test_an_adapter_that_changed_its_base_is_not_added_to_another(tmp_path: Path) -> None:
    run = adapter(tmp_path / "run")
    began = {**CONFIG, "init_lora_weights": "pissa"}
    (run / "adapter_config.json").write_text(json.dumps(began))
    with pytest.raises(Unsupported, match="init_lora_weights = 'pissa', which changed the weigh"):
        export(run, tmp_path / "out", base=base(tmp_path / "base"))


@pytest.mark.parametrize("head", ["score", "lm_head"])
def test_only_a_model_with_such_a_head_gets_it_tied(head: str, tmp_path: Path) -> None:
    tied = json.dumps({"model_type": "bert", "tie_word_embeddings": True})
    more = {"embed_tokens.weight": noise(5, 4, seed=4)}
    more |= {"score.weight": noise(2, 4, seed=5)} if head == "score" else {}
    config = json.dumps({**CONFIG, "target_modules": ["q", head]})
    rows = 2 if head == "score" else 5
    name = f"base_model.model.{head}.lora_"
    halves = {f"{name}A.weight": noise(2, 4, seed=6), f"{name}B.weight": noise(rows, 2)}
    run = adapter(tmp_path / "run", **halves)
    (run / "adapter_config.json").write_text(config)
    given = model(tmp_path / "base", {**WEIGHTS, **more}, config__json=tied)
    notes = zerotools.consolidate(run, tmp_path / "out", base=given, no_check_names=True).notes
    assert any("lm_head" in note for note in notes) == (head == "lm_head")


def test_a_base_of_hub_names_gets_an_adapter_of_names_in_memory(tmp_path: Path) -> None:
    prefix = "base_model.model.model.language_model.layers.0.q.lora_"
    run = model(
        tmp_path / "run",
        {f"{prefix}A.weight": DOWN, f"{prefix}B.weight": UP},
        adapter_config__json=json.dumps(CONFIG),
    )
    named = {f"language_model.model.{name}": tensor for name, tensor in WEIGHTS.items()}
    named |= {"vision_tower.x.weight": noise(3), "language_model.lm_head.weight": noise(5, 4)}
    given = model(tmp_path / "base", named, config__json='{"model_type": "llava"}')
    found = export(run, tmp_path / "out", base=given, dtype="fp32", check_names=False)
    assert set(found) == set(named)
    np.testing.assert_allclose(found["language_model.model.layers.0.q.weight"], SUM, atol=1e-6)
    compared = zerotools.diff(tmp_path / "out", given, adapter=run)
    assert compared.is_equal


VIT = {
    "attention.q_proj": "attention.attention.query",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def test_an_adapter_of_vit_is_merged_under_the_names_of_the_hub(tmp_path: Path) -> None:
    prefix = "base_model.model.vit.layers.0"
    halves = {
        f"{prefix}.{part}.lora_{half}.weight": tensor
        for part in VIT
        for half, tensor in (("A", DOWN), ("B", UP))
    }
    run = model(tmp_path / "run", halves, adapter_config__json=json.dumps(CONFIG))
    base = WEIGHTS["layers.0.q.weight"]
    named = {f"vit.encoder.layer.0.{part}.weight": base for part in VIT.values()}
    given = model(tmp_path / "base", named, config__json='{"model_type": "vit"}')
    found = export(run, tmp_path / "out", base=given, dtype="fp32", check_names=False)
    assert set(found) == set(named)
    for tensor in found.values():
        np.testing.assert_allclose(tensor, SUM, atol=1e-6)


def test_a_type_of_unknown_names_in_memory_is_left_to_peft(tmp_path: Path) -> None:
    run = adapter(tmp_path / "run")
    sizes = json.dumps({"model_type": "beit", "architectures": ["BeitModel"]})
    given = model(tmp_path / "base", {"encoder.q.weight": noise(4, 6)}, config__json=sizes)
    said = r"let PEFT merge it: python -c .*transformers.BeitModel.from_pretrained\('.*base'\)"
    with pytest.raises(BadRequest, match=said):
        export(run, tmp_path / "out", base=given)


@pytest.mark.parametrize(
    ("kind", "release", "is_turned"),
    [("qwen3_moe", "0.21.2", False), ("gpt_oss", "0.21.2", True), ("qwen3_moe", None, True)],
)
def test_square_experts_lie_as_the_model_and_peft_have_them(
    kind: str, release: str | None, is_turned: bool, tmp_path: Path
) -> None:
    name = "model.layers.0.mlp.experts"
    weight, down, up = noise(3, 4, 4), noise(6, 4, seed=1), noise(4, 6, seed=2)
    lora = {**CONFIG, "target_modules": [], "target_parameters": ["experts.gate_up_proj"]}
    config = lora if release is None else {**lora, "peft_version": release}
    run = model(
        tmp_path / "run",
        {f"base_model.model.{name}.lora_{half}.weight": tensor
         for half, tensor in (("A", down), ("B", up))},
        adapter_config__json=json.dumps(config),
    )  # fmt: skip
    named = {f"{name}.gate_up_proj": weight}
    given = model(tmp_path / "base", named, config__json=json.dumps({"model_type": kind}))
    found = export(run, tmp_path / "out", base=given, dtype="fp32", check_names=False)
    product = np.einsum("ore,eri->eoi", up.reshape(4, 2, 3), down.reshape(3, 2, 4))
    product = product.transpose(0, 2, 1) if is_turned else product
    np.testing.assert_allclose(found[f"{name}.gate_up_proj"], weight + 2 * product, atol=1e-5)
