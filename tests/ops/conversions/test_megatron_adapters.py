"""LoRA adapters that Megatron's layers were trained with as adapters of PEFT, and back: real runs
of two programs on two tensor-parallel ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.golden_files import GOLDEN
from tests.ops.exports import export, masters
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.conversions import convert
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.convert_layout import MapRequest

RUNS = ("megatron-bridge-0.3.1", "mcore-bridge-1.6.5")
TO_HUB, TO_MEGATRON = MapRequest(to="hf"), MapRequest(to="megatron")
QKV = "decoder.layers.0.self_attention.linear_qkv.adapter"
HUB = "base_model.model.model.layers.0"


def run_of(program: str) -> Path:
    return GOLDEN / program / "lora"


def as_peft(program: str, out: Path) -> Path:
    run = run_of(program)
    options = Options(adapter_only=True, mapping=TO_HUB, dtype="fp32")
    conversion = prepare_export(run / "checkpoint", out, options, config_dir=run / "model")
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    return out


def for_megatron(adapter: Path, out: Path, program: str = RUNS[0]) -> Conversion:
    base = run_of(program) / "model"
    conversion = convert.prepare_convert(
        adapter, out, "megatron", {}, config_dir=base, mapping=TO_MEGATRON
    )
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    return conversion


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    place = tmp_path_factory.mktemp("adapters")
    return {program: as_peft(program, place / program) for program in RUNS}


@pytest.mark.torch
@pytest.mark.peft
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("program", RUNS)
def test_peft_computes_what_megatron_does(
    program: str, adapters: Mapping[str, Path], tmp_path: Path
) -> None:
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file as tensors_of
    from transformers import AutoModelForCausalLM

    run = run_of(program)
    said = tensors_of(run / "logits.safetensors")
    base = AutoModelForCausalLM.from_pretrained(run / "model", attn_implementation="eager")
    before = base(said["tokens"]).logits
    model = PeftModel.from_pretrained(base, adapters[program])
    with torch.no_grad():
        found = model(said["tokens"]).logits
        assert (found - said["logits"]).abs().max() < 2e-5
        assert (found - before).abs().max() > 0.01
        wanted = model.merge_and_unload().state_dict()
    merged = export(run / "checkpoint", tmp_path / "merged", base=run / "model", dtype="fp32")
    for name, value in merged.items():
        np.testing.assert_allclose(value, wanted[name].numpy(), atol=1e-6, err_msg=name)


def test_layers_are_named_as_peft_names_them(adapters: Mapping[str, Path]) -> None:
    for program in RUNS:
        config = json.loads((adapters[program] / "adapter_config.json").read_text())
        leaves = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        assert config["target_modules"] == sorted(leaves)
        assert (config["r"], config["lora_alpha"]) == (4, 6)


@pytest.mark.parametrize("program", RUNS)
def test_merging_and_mapping_commute(
    program: str, adapters: Mapping[str, Path], tmp_path: Path
) -> None:
    run, base = run_of(program), tmp_path / "base"
    made = convert.prepare_convert(run / "model", base, "megatron", {}, mapping=TO_MEGATRON)
    assert isinstance(made, Conversion)
    perform_conversion(made, budget=MemoryBudget(), overwrite=False)
    shutil.copy(run / "model" / "config.json", base)
    source = run / "checkpoint"
    mapped = export(source, tmp_path / "one", base=base, mapping=TO_HUB, dtype="fp32")
    merged = export(adapters[program], tmp_path / "two", base=run / "model", dtype="fp32")
    assert mapped.keys() == merged.keys()
    for name, value in merged.items():
        np.testing.assert_allclose(mapped[name], value, atol=1e-6, err_msg=name)


def test_the_way_back_gives_the_same_bytes(adapters: Mapping[str, Path], tmp_path: Path) -> None:
    wanted = masters(run_of(RUNS[0]) / "checkpoint")
    made = for_megatron(adapters[RUNS[0]], tmp_path / "back")
    assert "load it with r (dim) 4 and lora_alpha (alpha) 6" in made.notes
    found = masters(tmp_path / "back")
    assert found.keys() == wanted.keys()
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)


def changed(adapter: Path, out: Path, tensors: Mapping[str, Array | None], **config: Any) -> Path:
    shutil.copytree(adapter, out)
    held = {**load_file(out / "adapter_model.safetensors"), **tensors}
    kept = {name: value for name, value in held.items() if value is not None}
    save_file(kept, out / "adapter_model.safetensors")
    tree = json.loads((out / "adapter_config.json").read_text())
    (out / "adapter_config.json").write_text(json.dumps({**tree, **config}))
    return out


V = f"{HUB}.self_attn.v_proj"


@pytest.mark.parametrize(
    ("tensors", "config", "said"),
    [
        (
            {f"{V}.lora_A.weight": np.ones((4, 16), np.float32)},
            {},
            r"lora_A of .*q_proj and .*v_proj differ, but .*linear_qkv, .* has one lora_A; merge",
        ),
        (
            {f"{V}.lora_A.weight": None, f"{V}.lora_B.weight": None},
            {},
            "an adapter of .*q_proj, .*k_proj, but not of .*v_proj, and all parts of",
        ),
        ({}, {"alpha_pattern": {"v_proj": 3}}, "r and lora_alpha are .* but both become"),
        ({}, {"alpha_pattern": {"down_proj": 3}}, "have different r or lora_alpha"),
    ],
)
def test_layers_that_megatron_has_in_one_need_one_adapter(
    tensors: dict[str, Array | None],
    config: dict[str, Any],
    said: str,
    adapters: Mapping[str, Path],
    tmp_path: Path,
) -> None:
    source = changed(adapters[RUNS[0]], tmp_path / "in", tensors, **config)
    with pytest.raises(BadRequest, match=said):
        for_megatron(source, tmp_path / "out")


def test_what_is_not_moved_is_refused(adapters: Mapping[str, Path], tmp_path: Path) -> None:
    magnitude = {f"{V}.lora_magnitude_vector": np.ones(16, np.float32)}
    source = changed(adapters[RUNS[0]], tmp_path / "in", magnitude, use_dora=True)
    with pytest.raises(Unsupported, match="lora_magnitude_vector, but only the matrices lora_A"):
        for_megatron(source, tmp_path / "out")


def test_without_a_base_both_commands_are_named(tmp_path: Path) -> None:
    run = run_of(RUNS[0]) / "checkpoint"
    with pytest.raises(BadRequest, match=r"OUT --base .* --adapter-only --map-to hf --config-dir"):
        prepare_export(run, tmp_path / "out", Options())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "has the layers of megatron, which PEFT does not load: add --map-to hf"),
        ({"mapping": TO_MEGATRON}, "convert .* --to megatron --map-to megatron"),
    ],
)
def test_an_adapter_that_nothing_loads_is_refused(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    run = run_of(RUNS[0])
    wanted = Options(adapter_only=True, **options)
    with pytest.raises(BadRequest, match=said):
        prepare_export(run / "checkpoint", tmp_path / "out", wanted, config_dir=run / "model")


def test_an_adapter_is_not_written_as_a_model(tmp_path: Path) -> None:
    run = run_of(RUNS[0])
    source, base = run / "checkpoint", run / "model"
    with pytest.raises(BadRequest, match="OUT --adapter-only --map-to hf"):
        convert.prepare_convert(
            source, tmp_path, "safetensors", {}, config_dir=base, mapping=TO_HUB
        )


def test_a_config_of_another_model_is_refused(tmp_path: Path) -> None:
    run, base = run_of(RUNS[0]), tmp_path / "base"
    base.mkdir()
    tree = json.loads((run / "model" / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**tree, "num_key_value_heads": 1}))
    wanted = Options(adapter_only=True, mapping=TO_HUB)
    with pytest.raises(BadRequest, match=r"linear_qkv is for a weight of shape \[.*\], but config"):
        prepare_export(run / "checkpoint", tmp_path / "out", wanted, config_dir=base)
