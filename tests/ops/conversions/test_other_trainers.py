"""The commands on what other trainers leave: inspected without a problem, exported bit for bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.golden_files import GOLDEN, TORCH
from zerotools.cli.main import build, run
from zerotools.core.errors import EXIT_DONE, BadFile

WEIGHTS = ("param", "buffer")
CASES: Mapping[str, str] = {
    "fsdp1-dcp-w2": "",
    "fsdp1-dcp-w3-flat": "",
    "fsdp1-sharded-bin-w2": "",
    "fsdp2-dcp-w3": "",
    "fsdp2-hf-sharded-w2": "",
    "fsdp2-torchtitan-w2": "",
    "fsdp2-tp-dcp-w4": "",
    "fsdp2-verl-w3": "",
    "training-file": "checkpoint.pt",
}


def command(*arguments: object) -> int:
    return run(build(), [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", CASES)
def test_a_golden_is_inspected_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = TORCH / name / "checkpoint" / CASES[name]
    assert command("inspect", path, "--json") == EXIT_DONE
    shown = json.loads(capsys.readouterr().out)
    assert shown["problems"] == []
    truth: dict[str, Any] = load_file(TORCH / name / "truth.safetensors")
    bits = "bf16" if name == "fsdp2-hf-sharded-w2" else "fp32"
    assert command("consolidate", path, tmp_path / "out", "--dtype", bits) == EXIT_DONE
    exported = load_file(tmp_path / "out" / "model.safetensors")
    wanted = {k.partition("|")[0]: v for k, v in truth.items() if k.partition("|")[2] in WEIGHTS}
    assert exported.keys() >= wanted.keys()
    for key, values in wanted.items():
        assert exported[key].tobytes() == values.tobytes(), key


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("fsdp2-verl-w3", "model_world_size_3_rank_1.pt"),
        ("fsdp1-sharded-bin-w2", "pytorch_model_rank1.bin"),
        ("fsdp2-dcp-w3", "pytorch_model_fsdp_0/__1_0.distcp"),
    ],
)
def test_nothing_is_exported_without_a_lost_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, lost: str
) -> None:
    copy = Path(shutil.copytree(TORCH / name / "checkpoint", tmp_path / "copy"))
    (copy / lost).unlink()
    assert command("inspect", copy) == 1
    assert command("consolidate", copy, tmp_path / "out") == BadFile.exit_code
    assert Path(lost).name in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_lost_last_shard_that_the_config_knows_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(TORCH / "fsdp2-hf-sharded-w2" / "checkpoint", tmp_path / "copy"))
    (copy / "shard-00002-model-00001-of-00001.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"norm.seen": "model.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert command("consolidate", copy, tmp_path / "out") == BadFile.exit_code
    assert "lists norm.seen, which no shard holds" in capsys.readouterr().err


# Runs that PEFT has adapted; the truth is what its merge_and_unload makes of the live model.
LORA_RUNS = sorted(GOLDEN.glob("accelerate-*-lora/*")) + sorted(GOLDEN.glob("verl-*/*-lora"))


@pytest.mark.parametrize("case", LORA_RUNS, ids=lambda case: case.name)
def test_a_lora_run_is_merged_as_peft_merges_it(case: Path, tmp_path: Path) -> None:
    wanted: dict[str, Any] = load_file(case / "truth.safetensors")
    for dtype, exact in (("fp32", np.float32), ("bf16", ml_dtypes.bfloat16)):
        out = tmp_path / dtype
        assert command("consolidate", case / "checkpoint", out, "--dtype", dtype) == EXIT_DONE
        found = load_file(out / "model.safetensors")
        assert found.keys() == wanted.keys()
        assert (out / "config.json").is_file()
        for name, values in wanted.items():
            largest = np.abs(values).max().astype(exact)
            step = float(np.spacing(largest)) if exact is np.float32 else float(largest) / 2**7
            rounded = values.astype(exact).astype(np.float32)
            assert np.abs(found[name].astype(np.float32) - rounded).max() <= step, name


# The Trainer saves adapters under PEFT's names, and their moments under those of the model.
TRAINER = GOLDEN / "transformers-5.23.0-lora"
FULL = TRAINER / "fsdp2-full" / "checkpoint" / "checkpoint-2"
BASE = TRAINER / "fsdp2-full" / "base"


@pytest.mark.parametrize("kind", ["fsdp2-sharded", "fsdp2-full"])
def test_an_adapter_of_the_trainer_is_merged_and_exported(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = TRAINER / kind / "checkpoint" / "checkpoint-2"
    assert command("inspect", source, "--json") == EXIT_DONE
    shown = json.loads(capsys.readouterr().out)
    assert shown["trainable_parameters"] == shown["param_groups"][0]["elements"] == 224
    options = ("--dtype", "fp32", "--adapter-config", FULL)
    merged, alone = tmp_path / "merged", tmp_path / "alone"
    assert command("consolidate", source, merged, "--base", BASE, *options) == EXIT_DONE
    wanted: dict[str, Any] = load_file(TRAINER / kind / "truth.safetensors")
    found = load_file(merged / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-7)
    assert command("consolidate", source, alone, "--adapter-only", *options) == EXIT_DONE
    saved: dict[str, Any] = load_file(FULL / "adapter_model.safetensors")
    adapter = load_file(alone / "adapter_model.safetensors")
    assert adapter.keys() == saved.keys()
    for name, values in saved.items():
        np.testing.assert_array_equal(adapter[name], values)
    universal = tmp_path / "universal"
    assert command("convert", source, universal, "--to", "universal") == EXIT_DONE


def test_adapters_that_a_program_left_out_are_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PEFT 0.21.2 does that to what it saves of FSDP1; the optimizer has their moments."""
    source = Path(shutil.copytree(FULL, tmp_path / "checkpoint-2"))
    whole = load_file(source / "adapter_model.safetensors")
    kept = {name: values for name, values in whole.items() if ".lora_" not in name}
    save_file(kept, source / "adapter_model.safetensors")
    assert command("inspect", source, "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert "has optimizer state of 4 LoRA tensors" in shown["problems"][0]["message"]
    assert shown["next"] == []
    for options in ((), ("--adapter-only",), ("--base", BASE)):
        assert command("consolidate", source, tmp_path / "out", *options) == BadFile.exit_code
        assert "PEFT 0.21 does with FSDP1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
