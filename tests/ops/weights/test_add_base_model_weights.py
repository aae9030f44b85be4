"""A base model that is named for an adapter: on a disk or in a store, beside packed weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import zerotools
from tests.golden_files import DEEPSPEED
from tests.io.stores.far import put_directory, served
from tests.ops.exports import export, model, noise
from tests.ops.weights.test_lora_merge import DOWN, OTHER, SCALE, UP, WEIGHT, matrices, written
from tests.runs.records import a_record
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.hub_layout import HubBlock
from zerotools.io.numeric.dtype_casts import Array
from zerotools.io.stores.store_path import StorePath
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.add_base_model_weights import with_base
from zerotools.ops.weights.lora_merge import AdapterRequest, merge_adapters
from zerotools.ops.weights.restore_hub_layout import hub_layout_of, restore_hub_layout
from zerotools.runs.base_model_record import record_base
from zerotools.runs.training_record import JobRecord, LoraRecord

CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q"],
    "base_model_name_or_path": "org/base",
}  # fmt: skip
PREFIX = "base_model.model.layers.0"
WEIGHTS = {"layers.0.q.weight": noise(4, 6), "layers.0.norm.weight": noise(4, seed=3)}
LORA_A, LORA_B = noise(2, 6, seed=1), noise(4, 2, seed=2)
SUM = WEIGHTS["layers.0.q.weight"] + np.float32(2) * (LORA_B @ LORA_A)


def adapter(directory: Path, **more: Array) -> Path:
    """What a run leaves whose base is not in it, or `more` of it."""
    tensors = {
        f"{PREFIX}.q.lora_A.default.weight": LORA_A,
        f"{PREFIX}.q.lora_B.default.weight": LORA_B,
    }
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
        r"names org/base\): it has no weights of the model's layers; merge both with zerotools "
        "consolidate "
        r".*run OUT --base org/base, or export only the adapter with .*run OUT --adapter-only"
    )
    with pytest.raises(BadRequest, match=said):
        export(run, tmp_path / "out")
    other = model(tmp_path / "other", {"layers.0.k.weight": noise(4, 6)})
    with pytest.raises(BadRequest, match=r"is not the base .* layers.0.q.weight, which the base"):
        export(run, tmp_path / "out", base=other)
    with pytest.raises(
        BadRequest, match="this model has adapters; name the model on which they were"
    ):
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
def test_only_a_model_with_such_a_head_gets_it(head: str, tmp_path: Path) -> None:
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
    merged = export(run, tmp_path / "out", base=given, check_names=False)
    assert ("lm_head.weight" in merged) == (head == "lm_head")


def test_both_of_two_tied_layers_get_the_rows_that_peft_saved_once(tmp_path: Path) -> None:
    tied = json.dumps({"model_type": "bert", "tie_word_embeddings": True})
    embedding, row = noise(5, 4, seed=4), noise(1, 4, seed=7)
    up, down = noise(5, 2, seed=5), noise(2, 4, seed=6)
    parts = {"lm_head.lora_A.weight": down, "lm_head.lora_B.weight": up}
    parts |= {"embed_tokens.token_adapter.trainable_tokens_delta": row}
    run = adapter(tmp_path / "run", **{f"base_model.model.{n}": t for n, t in parts.items()})
    config = {**CONFIG, "trainable_token_indices": {"embed_tokens": [3]}}
    (run / "adapter_config.json").write_text(json.dumps(config))
    given = model(
        tmp_path / "base", {**WEIGHTS, "embed_tokens.weight": embedding}, config__json=tied
    )
    merged = export(run, tmp_path / "out", base=given, check_names=False, dtype="fp32")
    embedding[3] = row
    np.testing.assert_array_equal(merged["embed_tokens.weight"], embedding)
    scale = CONFIG["lora_alpha"] / CONFIG["r"]
    np.testing.assert_allclose(merged["lm_head.weight"], embedding + scale * up @ down, rtol=1e-6)


def test_a_base_of_hub_names_gets_an_adapter_of_names_in_memory(tmp_path: Path) -> None:
    prefix = "base_model.model.model.language_model.layers.0.q.lora_"
    run = model(
        tmp_path / "run",
        {f"{prefix}A.weight": LORA_A, f"{prefix}B.weight": LORA_B},
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
        for half, tensor in (("A", LORA_A), ("B", LORA_B))
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


PLAIN = Key("layer.q.weight", "param")
ON_HUB = "transformer.layer.q.weight"
FILE = "model.safetensors"


def saved(tmp_path: Path, name: str = PLAIN.name, **changes: object) -> Checkpoint:
    """Adapters alone, and a directory with their base model, which has the weight as `name`."""
    arrays = matrices()
    directory = tmp_path / "model"
    directory.mkdir()
    base = {name: arrays[WEIGHT], OTHER.name: arrays[OTHER]}
    save_file(base, directory / FILE, metadata={"format": "pt"})
    lora = LoraRecord(2, SCALE, (), record_base(directory, [FILE], "nf4"))
    record: JobRecord = replace(a_record(lora=lora), **changes)  # type: ignore[arg-type]
    alone = {key: arrays[key] for key in (DOWN, UP)}
    return written(tmp_path / "source", alone, record)


def wanted() -> np.ndarray:
    arrays = matrices()
    total: np.ndarray = arrays[WEIGHT] + np.float32(SCALE) * (arrays[UP] @ arrays[DOWN])
    return total


def test_the_sum_is_that_of_the_weight_before_it_was_rounded(tmp_path: Path) -> None:
    merged = merge_adapters(saved(tmp_path), tmp_path / "scratch")
    assert merged is not None
    assert set(merged.checkpoint.tensors) == {PLAIN, OTHER}
    with merged.sums():
        found = load_tensors(merged.checkpoint, dict.fromkeys((PLAIN, OTHER), dtypes.FLOAT32))
    np.testing.assert_allclose(found[PLAIN], wanted(), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found[OTHER], matrices()[OTHER])


def test_a_weight_may_have_another_name_on_the_hub(tmp_path: Path) -> None:
    whole = HubBlock(ON_HUB, (9, 5), Box.whole((9, 5)))
    merged = merge_adapters(
        saved(tmp_path, ON_HUB, hub={PLAIN.name: (whole,)}), tmp_path / "scratch"
    )
    assert merged is not None
    layout = hub_layout_of(merged.checkpoint)
    with merged.sums():
        found = restore_hub_layout(merged.checkpoint, layout)
        assert {key.name for key in found.tensors} == {ON_HUB, OTHER.name}
        total = load_tensors(found, {Key(ON_HUB, "param"): dtypes.FLOAT32})[Key(ON_HUB, "param")]
    np.testing.assert_allclose(total, wanted(), rtol=1e-6, atol=1e-6)


def test_a_base_that_is_gone_or_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, file = saved(tmp_path), tmp_path / "model" / FILE
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    merged = merge_adapters(source, tmp_path / "scratch")
    assert merged is not None
    with pytest.raises(
        BadRequest, match=r"has SHA-256 .*; name a copy of it with zerotools consolidate"
    ):
        merged.sums()
    file.unlink()
    with pytest.raises(BadRequest, match=r"model\.safetensors cannot be read: No such file"):
        merge_adapters(source, tmp_path / "scratch")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / FILE).write_bytes(before)
    monkeypatch.chdir(tmp_path)  # a user's path is not below the checkpoint
    merged = merge_adapters(source, tmp_path / "scratch", request=AdapterRequest(base=Path("copy")))
    assert merged is not None
    with merged.sums():
        found = load_tensors(merged.checkpoint, {PLAIN: dtypes.FLOAT32})[PLAIN]
    np.testing.assert_allclose(found, wanted(), rtol=1e-6, atol=1e-6)


def test_whole_weights_take_no_base(tmp_path: Path) -> None:
    asked = AdapterRequest(base=tmp_path)
    whole = written(tmp_path / "source", matrices(), a_record(lora=LoraRecord(2, SCALE)))
    with pytest.raises(BadRequest, match="holds whole weights; leave it out"):
        merge_adapters(whole, tmp_path / "scratch", request=asked)
    plain = {key: tensor for key, tensor in whole.tensors.items() if key == OTHER}
    with pytest.raises(BadRequest, match=r"has no adapter .* --base is for runs with an adapter"):
        merge_adapters(
            replace(whole, tensors=plain, native=None), tmp_path / "scratch", request=asked
        )
    (whole.root / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 2, "lora_alpha": 3}'
    )
    with pytest.raises(BadRequest, match="already holds the base model of its adapter"):
        merge_adapters(replace(whole, native=None), tmp_path / "scratch", request=asked)


def test_a_base_in_a_store_is_refused(tmp_path: Path) -> None:
    """Its weights would be looked for on the disk of the adapters."""
    far = StorePath.of("s3", ["bucket", "model"])
    with pytest.raises(BadRequest, match=r"--base s3://bucket/model: .* must be on a disk here"):
        merge_adapters(saved(tmp_path), tmp_path / "scratch", request=AdapterRequest(base=far))


def test_files_that_the_run_did_not_read_are_left_out(tmp_path: Path) -> None:
    source = saved(tmp_path)
    other = {"layer.z.weight": np.zeros((2, 2), "f4")}
    save_file(other, tmp_path / "model" / "z.safetensors", metadata={"format": "pt"})
    merged = merge_adapters(source, tmp_path / "scratch")
    assert merged is not None
    assert set(merged.checkpoint.tensors) == {PLAIN, OTHER}


def test_a_run_beside_the_base_is_not_taken_for_it(tmp_path: Path) -> None:
    """As the Trainer saves with DeepSpeed: a model, and the run that goes on, in one directory."""
    source, directory = saved(tmp_path), tmp_path / "model"
    shutil.copytree(DEEPSPEED / "z2-bf16-w2" / "checkpoint", directory, dirs_exist_ok=True)
    for name in ("model", "consolidated"):
        (directory / f"{name}.safetensors.index.json").write_text("{}")
    merged = merge_adapters(source, tmp_path / "scratch")
    assert merged is not None
    assert set(merged.checkpoint.tensors) == {PLAIN, OTHER}


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    source, directory = saved(tmp_path), tmp_path / "model"
    shutil.copy(directory / FILE, directory / "again.safetensors")
    twice = record_base(directory, [FILE, "again.safetensors"], "nf4")
    record = a_record(lora=LoraRecord(2, SCALE, (), twice))
    with pytest.raises(BadFile, match=r"safetensors holds layer\.\w+\.weight, which another file"):
        with_base(source, record, twice)


def test_a_base_without_a_weight_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, "layer.k.weight")
    with pytest.raises(BadFile, match=r"model has no layer\.q\.weight, which an adapter of"):
        merge_adapters(source, tmp_path / "scratch")


EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
GROWN = {EMBEDDING: noise(7, 6, seed=8), HEAD: noise(7, 6, seed=9)}
OWN = {f"{PREFIX}.q.lora_A.weight": LORA_A, f"{PREFIX}.q.lora_B.weight": LORA_B}


def run(directory: Path, beside: dict[str, Array], **trained: Array) -> Path:
    """A checkpoint of the Trainer: what was trained is in `model`, PEFT's file is above it."""
    adapter(directory / "model", **trained)
    (directory / "model" / "adapter_config.json").rename(directory / "adapter_config.json")
    save_file(beside, directory / "adapter_model.safetensors")
    return directory / "model"


def small(directory: Path) -> Path:
    """The base model, with the vocabulary that it had before."""
    own = {**WEIGHTS, EMBEDDING: noise(5, 6, seed=8), HEAD: noise(5, 6, seed=9)}
    return model(directory, own, config__json=json.dumps({"vocab_size": 5}))


def saved_run(*names: str) -> dict[str, Array]:
    return {**OWN, **{f"base_model.model.{name}": GROWN[name] for name in names}}


def alone(source: Path, out: Path) -> tuple[dict[str, Array], list[str]]:
    conversion = prepare_export(source, out, Options(adapter_only=True))
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    return load_file(out / "adapter_model.safetensors"), list(conversion.notes)


def test_a_grown_vocabulary_that_was_not_trained_is_exported(tmp_path: Path) -> None:
    source = run(tmp_path / "run", saved_run(EMBEDDING, HEAD))
    merged = export(source, tmp_path / "out", base=small(tmp_path / "base"), dtype="fp32")
    for name, values in GROWN.items():
        np.testing.assert_array_equal(merged[name], values)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 7
    adapter_alone, notes = alone(source, tmp_path / "adapter")
    assert adapter_alone.keys() == saved_run(EMBEDDING, HEAD).keys()
    file = tmp_path / "run" / "adapter_model.safetensors"
    why = f"from {file}, because the checkpoint has only trained weights"
    assert f"took {EMBEDDING} and {HEAD} {why}" in notes


def test_what_was_trained_is_not_taken_from_there(tmp_path: Path) -> None:
    trained = noise(7, 6, seed=10)
    config: dict[str, Any] = {**CONFIG, "modules_to_save": ["lm_head"]}
    source = run(
        tmp_path / "run",
        saved_run(EMBEDDING, HEAD),
        **{"base_model.model.lm_head.modules_to_save.default.weight": trained},
    )
    (tmp_path / "run" / "adapter_config.json").write_text(json.dumps(config))
    merged = export(source, tmp_path / "out", base=small(tmp_path / "base"), dtype="fp32")
    np.testing.assert_array_equal(merged[HEAD], trained)
    np.testing.assert_array_equal(merged[EMBEDDING], GROWN[EMBEDDING])


@pytest.mark.parametrize("other", ["rank", "layer", "nothing"])
def test_the_file_of_another_adapter_is_left_alone(other: str, tmp_path: Path) -> None:
    beside = saved_run(EMBEDDING)
    down = f"{PREFIX}.q.lora_A.weight"
    if other == "rank":
        beside[down] = noise(3, 6)
    elif other == "layer":
        beside["base_model.model.layers.1.q.lora_A.weight"] = beside.pop(down)
    else:
        del beside[f"base_model.model.{EMBEDDING}"]
    source = run(tmp_path / "run", beside)
    found, notes = alone(source, tmp_path / "adapter")
    assert found.keys() == OWN.keys()
    assert not any("adapter_model" in note for note in notes)


def test_a_damaged_file_ends_the_export(tmp_path: Path) -> None:
    source = run(tmp_path / "run", saved_run(EMBEDDING))
    (tmp_path / "run" / "adapter_model.safetensors").write_bytes(b"version https://git-lfs")
    with pytest.raises(BadFile, match="adapter_model"):
        alone(source, tmp_path / "adapter")


def test_run_and_base_may_be_in_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near, small_one = run(tmp_path / "run", saved_run(EMBEDDING, HEAD)), small(tmp_path / "base")
    with served(monkeypatch) as store:
        far = put_directory(store, tmp_path / "run", "deep/run") / "model"
        small_far = put_directory(store, small_one, "deep/base")
        for number, (source, base) in enumerate(
            ((far, small_one), (far, small_far), (near, small_far))
        ):
            merged = export(source, tmp_path / f"out-{number}", base=base, dtype="fp32")
            for name, values in GROWN.items():
                np.testing.assert_array_equal(merged[name], values)
