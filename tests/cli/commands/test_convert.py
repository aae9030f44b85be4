"""`zerotools convert`: what it says, its JSON, and one sentence for what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import DEEPSPEED
from tests.ops.exports import model, noise
from zerotools.cli.main import build, run

FULL = DEEPSPEED / "z2-bf16-w2" / "checkpoint"

Convert = Callable[..., tuple[int, str, str]]


@pytest.fixture
def convert(capsys: pytest.CaptureFixture[str]) -> Convert:
    """`convert(path, out, "--to", "torch")` is (exit status, stdout, stderr)."""

    def invoke(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run(build(), ["convert", *map(str, arguments)])
        return (status, *capsys.readouterr())

    return invoke


def test_what_is_dropped_is_one_line_per_reason(convert: Convert, tmp_path: Path) -> None:
    status, out, err = convert(FULL, tmp_path / "out", "--to", "safetensors")
    assert status == 0, err
    assert out.startswith(f"wrote {tmp_path / 'out'}: 14 tensors")
    lines = [line for line in err.splitlines() if line.startswith("dropped: ")]
    assert lines == [
        "dropped: exp_avg, exp_avg_sq, step, param_groups, steps, ds_config "
        "(only weights are written to safetensors)",
        "dropped: param16 (these are casts of the masters, which are written as the weights)",
        "dropped: frozen (safetensors does not record which weights were frozen)",
        "dropped: buffer (the tensors are kept, but no longer marked as buffers)",
        "dropped: aliases (safetensors does not record which names are tied)",
    ]
    assert "note: the weights are the fp32 masters, unchanged; --dtype bf16 writes the type" in err


def test_a_dry_run_says_the_same_and_writes_nothing(convert: Convert, tmp_path: Path) -> None:
    _, _, wet = convert(FULL, tmp_path / "out", "--to", "torch")
    status, out, dry = convert(FULL, tmp_path / "dry", "--to", "torch", "--dry-run")
    assert (status, dry) == (0, wet)
    assert out.startswith(f"would write {tmp_path / 'dry'}:\n  checkpoint.pt  ")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("dry", [True, False])
def test_the_json(convert: Convert, tmp_path: Path, dry: bool) -> None:
    asked = ("--to", "torch", "--json", *(["--dry-run"] if dry else []))
    status, out, err = convert(FULL, tmp_path / "out", *asked)
    told: dict[str, Any] = json.loads(out)
    assert (status, err) == (0, "")
    assert told["schema"] == "zerotools.convert/1"
    assert told["dry_run"] is dry
    assert told["files"] == [{"name": "checkpoint.pt", "bytes": told["bytes_to_write"]}]
    assert [each["what"] for each in told["dropped"]] == ["ds_config", "param16"]
    assert all(set(each) == {"what", "why"} and each["why"] for each in told["dropped"])


def test_consolidate_drops_in_silence_as_before(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(build(), ["consolidate", str(FULL), str(tmp_path / "out")]) == 0
    assert "dropped" not in capsys.readouterr().err


def test_to_universal(convert: Convert, tmp_path: Path) -> None:
    status, _, err = convert(FULL, tmp_path / "out", "--to", "universal", "--verify")
    assert status == 0, err
    assert '"checkpoint": {"load_universal": true}' in err
    assert "dropped:" not in err
    status, _, err = convert(tmp_path / "out", tmp_path / "one", "--to", "deepspeed", "--stage", 3)
    assert status == 0, err
    assert "--world-size" in err
    back = (tmp_path / "out", tmp_path / "back", "--to", "deepspeed", "--stage", 3)
    status, _, err = convert(*back, "--world-size", 3)
    assert status == 0, err


def test_weights_alone_are_said_to_be_that(convert: Convert, tmp_path: Path) -> None:
    source = model(tmp_path / "in", {"w": noise(4, 3)})
    status, _, err = convert(source, tmp_path / "out", "--to", "torch", "--lr", "1e-3")
    assert status == 0
    assert "note: weights only: " in err
    assert "note: all 1 trained parameters are one param group" in err


def test_nothing_to_do_is_said(convert: Convert, tmp_path: Path) -> None:
    status, out, _ = convert(FULL, tmp_path / "out", "--to", "deepspeed")
    assert (status, "nothing was written (--force rewrites it)" in out) == (0, True)
    told = json.loads(convert(FULL, tmp_path / "out", "--to", "deepspeed", "--json")[1])
    assert (told["unchanged"], told["destination"]) == (True, None)
    assert list(tmp_path.iterdir()) == []
    assert convert(FULL, tmp_path / "out", "--to", "deepspeed", "--force")[0] == 0


def test_what_deepspeed_needs_and_nothing_says_is_listed(convert: Convert, tmp_path: Path) -> None:
    source = model(tmp_path / "in", {"w": noise(4, 3)})
    status, out, err = convert(source, tmp_path / "out", "--to", "deepspeed", "--world-size", 2)
    assert (status, out) == (2, "")
    assert "the ZeRO stage (--stage or --ds-config); the parameters of the optimizer" in err
    assert not (tmp_path / "out").exists()


def test_a_flag_that_contradicts_the_configuration_is_refused(
    convert: Convert, tmp_path: Path
) -> None:
    source = model(tmp_path / "in", {"w": noise(4, 3)})
    config = tmp_path / "ds.json"
    adam = {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}
    config.write_text(json.dumps({"zero_optimization": {"stage": 1}, "optimizer": adam}))
    order = tmp_path / "order.txt"
    order.write_text("w\n")
    asked = ("--to", "deepspeed", "--world-size", 2, "--ds-config", config, "--order", order)
    status, _, err = convert(source, tmp_path / "out", *asked, "--lr", "3e-4")
    assert (status, "--lr contradicts the configuration, which has 0.0001" in err) == (2, True)
    status, _, err = convert(source, tmp_path / "out", *asked, "--lr", "1e-4")
    assert status == 0, err


def test_sub_groups_of_a_universal_checkpoint_become_those_of_stage_3(
    convert: Convert, tmp_path: Path
) -> None:
    saved = DEEPSPEED / "z3-fp32-w2-sub-groups" / "checkpoint"
    status, _, err = convert(saved, tmp_path / "universal", "--to", "universal")
    assert status == 0, err
    asked = ("--to", "deepspeed", "--stage", 3, "--world-size", 3, "--verify")
    status, _, err = convert(tmp_path / "universal", tmp_path / "out", *asked)
    assert status == 0, err


def test_verified(convert: Convert, tmp_path: Path) -> None:
    status, out, _ = convert(FULL, tmp_path / "out", "--to", "safetensors", "--verify")
    assert (status, "; verified against the source" in out) == (0, True)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--to", "parquet"], "'parquet' is not one of"),
        ([], "--to"),
        (["--to", "torch", "--style", "torch", "--dtype", "bf16"], "--dtype and --style"),
        (["--to", "safetensors", "--world-size", "2"], "does not take --world-size"),
        (["--to", "safetensors", "--lr", "1"], "does not take --lr"),
        (["--to", "torch", "--max-shard-size", "1GB"], "does not take --max-shard-size"),
        (["--to", "torch", "--lr", "0.1"], "has lr in its param groups\nhint: leave --lr out"),
        (["--to", "torch", "--lr", "nan"], "--lr is nan and must be 0 or more"),
        (["--to", "dcp", "--betas", "5", "7"], "--betas is 5.0 7.0 and must be from 0 to below 1"),
        (["--to", "torch", "--tag", "nothing"], "nothing"),
        (["--to", "dcp", "--stage", "2"], "--to dcp does not take --stage"),
        (["--to", "torch", "--ds-config", "ds.json"], "ds.json"),
        (["--to", "deepspeed", "--world-size", "0"], "--world-size is 0"),
        (["--to", "dcp", "--world-size", "-3"], "--world-size is -3"),
        (["--to", "deepspeed", "--style", "torch"], "--to deepspeed does not take --style"),
        (["--to", "deepspeed", "--stage", "4"], "'4' is not one of"),
        (["--to", "torch", "--config-dir", str(FULL)], "has no config.json and no tokenizer"),
    ],
)
def test_bad_requests(convert: Convert, tmp_path: Path, asked: list[str], said: str) -> None:
    status, out, err = convert(FULL, tmp_path / "out", *asked)
    assert (status, out) == (2, "")
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_an_output_inside_the_source_is_refused(convert: Convert, tmp_path: Path) -> None:
    source = model(tmp_path / "in", {"w": noise(4, 3)})
    status, _, err = convert(source, source / "out", "--to", "torch")
    assert (status, "write it elsewhere" in err) == (2, True)
    status, _, err = convert(source, tmp_path, "--to", "torch", "--overwrite")
    assert (status, "contains the checkpoint" in err) == (2, True)
    assert [path.name for path in source.iterdir()] == ["model.safetensors"]


def test_an_output_that_exists(convert: Convert, tmp_path: Path) -> None:
    convert(FULL, tmp_path / "out", "--to", "torch")
    assert "exists" in convert(FULL, tmp_path / "out", "--to", "torch")[2]
    assert convert(FULL, tmp_path / "out", "--to", "safetensors", "--overwrite")[0] == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    status, _, err = convert(FULL, tmp_path / "mine", "--to", "torch", "--overwrite")
    assert (status, "--overwrite does not replace this directory" in err) == (2, True)


@pytest.mark.parametrize("to", ["torch", "safetensors", "dcp", "deepspeed"])
def test_companions_come_from_the_config_dir(convert: Convert, tmp_path: Path, to: str) -> None:
    own = model(tmp_path / "model", {"w": noise(2)}, config__json='{"mine": 1}')
    trained = DEEPSPEED / "hf-trainer-z3-bf16-w2" / "checkpoint"
    for number, source in enumerate((FULL, trained)):
        out = tmp_path / str(number)
        ranks = () if to in ("torch", "safetensors") else ("--world-size", 3)
        status, _, err = convert(source, out, "--to", to, *ranks, "--config-dir", own, "--verify")
        assert status == 0, err
        assert json.loads((out / "config.json").read_text())["mine"] == 1


def test_weights_that_fp16_cannot_hold_are_refused(convert: Convert, tmp_path: Path) -> None:
    source = model(tmp_path / "in", {"w": noise(40) * 1e6})
    status, _, err = convert(source, tmp_path / "out", "--to", "safetensors", "--dtype", "fp16")
    assert (status, "hint: use --dtype bf16 or fp32\n" in err) == (2, True)
    assert not (tmp_path / "out").exists()


def test_no_checkpoint_is_status_3(convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert convert(tmp_path, tmp_path.with_name("out"), "--to", "torch")[0] == 3


def test_what_lies_beside_and_is_left_behind_is_said(convert: Convert, tmp_path: Path) -> None:
    saved = DEEPSPEED / "hf-trainer-z3-bf16-w2" / "checkpoint"
    status, _, err = convert(saved, tmp_path / "out", "--to", "torch")
    assert status == 0
    assert "dropped: random state (it belongs to the ranks that saved it)" in err
    assert "not copied: model.safetensors, trainer_state.json, training_args.bin\n" in err
    assert (tmp_path / "out" / "config.json").is_file()
