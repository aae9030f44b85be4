"""Keys with which DeepSpeed does not start are refused, or left out where they do nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.imports.jobs import JOB, a_job, ds_text, outcomes, said
from zerotools.jobs.imports.combine import import_configs
from zerotools.jobs.launcher_keys.deepspeed_releases import (
    REMOVED,
    installed_release,
    parse_release,
    removal,
)
from zerotools.jobs.text.json_text import parse_json
from zerotools.jobs.text.toml_text import to_toml

ENGINE = a_job('engine = "deepspeed"\n' + JOB + "batch_size = 8\n")


def nested(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


ON: dict[str, Any] = {
    "nebula": {"enabled": True},
    "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}},
    "quantize_training": {"enabled": True},
    "sparse_attention": {"mode": "fixed"},
    "zero_optimization.mics_shard_size": 2,
    "zero_optimization.mics_hierarchical_params_gather": True,
    "amp": {"enabled": True, "opt_level": "O1"},
    "sparse_gradients": True,
    "eigenvalue": {"enabled": True},
    "elasticity": {"enabled": True, "max_train_batch_size": 8},
    "graph_harvesting": True,
    "curriculum_learning": {"enabled": True},
    "progressive_layer_drop": {"enabled": True, "theta": 0.5},
    "zero_optimization.zeropp_loco_param": {"err_beta": 0.8},
    "compile.enabled": True,
    "compile.disable": True,
    "compile.backend": "inductor",
    "compile.kwargs": {"mode": "max-autotune"},
}
OFF: dict[str, Any] = {
    "nebula": {"enabled": False},
    "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": False}}},
    "zero_optimization.mics_shard_size": -1,
    "amp": {"enabled": "auto", "opt_level": "auto"},
    "sparse_gradients": False,
    "elasticity": {"enabled": False, "max_train_batch_size": 8},
    "curriculum_learning": None,
    "sparse_attention": {},
    "compile.disable": False,
}


def of_stage(name: str, value: Any) -> str:
    config = nested(name, value)
    if "mics" in name:
        config["zero_optimization"]["stage"] = 3
    return json.dumps(config)


def test_every_removed_key_is_tried() -> None:
    assert set(ON) == set(REMOVED)


@pytest.mark.parametrize("name", REMOVED)
def test_what_is_on_is_refused_with_its_line(name: str) -> None:
    message = said(ds_text(of_stage(name, ON[name]), ENGINE))
    assert f"ds.json:1 {name} = " in message
    assert "DeepSpeed 0.19.8 no longer accepts it (since 0.1" in message


@pytest.mark.parametrize("name", OFF)
def test_what_is_off_is_left_out_and_said(name: str) -> None:
    imported = ds_text(of_stage(name, OFF[name]), ENGINE)
    assert imported.problem is None
    assert name.split(".")[-1] not in json.dumps(imported.deepspeed)
    row = next(row for row in imported.findings.rows if row.key == name)
    assert (row.outcome, row.why[:6]) == ("ignored", "is off")


def test_an_older_release_is_passed_what_it_takes() -> None:
    config = {"sparse_gradients": True, "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}}
    document = parse_json(json.dumps(config), source="ds.json")
    imported = import_configs(ENGINE, deepspeed=document, release=(0, 19, 6))
    assert imported.problem is None
    assert imported.deepspeed is not None
    assert imported.deepspeed.items() >= config.items()
    assert "OneBitAdam" in said(import_configs(ENGINE, deepspeed=document, release=(0, 19, 7)))


def test_the_engine_torch_does_not_mind_what_is_off() -> None:
    job = a_job(JOB + "batch_size = 8\n")
    for name, value in OFF.items():
        assert ds_text(of_stage(name, value), job).problem is None


@pytest.mark.parametrize("kind", ["OneBitAdam", "OnebitLamb", "ZeroOneAdam"])
def test_one_bit_optimizers_are_gone(kind: str) -> None:
    config = {"optimizer": {"type": kind, "params": {"lr": 1e-3}}}
    assert f'optimizer.type = "{kind}": DeepSpeed 0.19.8 no longer has it' in said(
        ds_text(json.dumps(config), ENGINE)
    )


def test_nulls_are_left_out_at_every_depth() -> None:
    config = {
        "flops_profiler": {"enabled": False, "output_file": None},
        "activation_checkpointing": {"number_checkpoints": None, "profile": False},
        "zero_optimization": {"stage": 2, "overlap_comm": None},
        "mine": [{"a": None}],
    }
    imported = ds_text(json.dumps(config), ENGINE)
    assert imported.problem is None
    assert imported.deepspeed is not None
    assert imported.deepspeed["flops_profiler"] == {"enabled": False}
    assert imported.deepspeed["mine"] == [{}]
    assert "null" not in json.dumps(imported.deepspeed)
    assert "flops_profiler" in to_toml(imported.tree, imported.origins)


def test_a_key_that_a_strict_section_never_had_is_refused() -> None:
    config = {"fp16": {"enabled": True, "opt_level": "O2"}, "zero_optimization": {"stage": 1}}
    assert "ds.json:1 fp16.opt_level: DeepSpeed has no such key, and does not start" in said(
        ds_text(json.dumps(config), ENGINE)
    )
    assert ds_text(json.dumps(config), a_job(JOB + "batch_size = 8\n")).problem is None


def test_comments_as_keys_do_not_reach_a_strict_section() -> None:
    config = {"zero_optimization": {"stage": 2, "_comment": "x", "//": 1}, "_comment": "y"}
    imported = ds_text(json.dumps(config), ENGINE)
    assert imported.deepspeed is not None
    assert imported.deepspeed["zero_optimization"] == {"stage": 2}
    assert outcomes(imported)["zero_optimization._comment"] == "unknown"


def test_versions() -> None:
    assert parse_release("0.19.8+cu12.4") == parse_release("0.19.8") == (0, 19, 8)
    assert parse_release("0.19.0rc1") == (0, 19)
    assert parse_release("main") is None
    assert removal("amp", (0, 19, 7)) is None
    assert removal("amp", (0, 20)) is not None
    assert installed_release("/nowhere/python") is None
