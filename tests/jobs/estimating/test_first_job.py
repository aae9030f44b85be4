"""The job that `zerotools init` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ops.estimate.tiny_configs import config
from zerotools.core.errors import BadRequest
from zerotools.jobs.estimating.first_job import FirstJob, first_job
from zerotools.jobs.estimating.job_workload import workload_of
from zerotools.jobs.estimating.seen_here import SeenData
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.text.toml_text import to_toml
from zerotools.ops.estimate.terms import Machine

GIB = 1 << 30
DATA = SeenData("/data/*.txt", "text")
WIDE = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
WIDE |= {"num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096}


def made(tmp_path: Path, machine: Machine, precision: str = "bf16", **changes: int) -> FirstJob:
    (tmp_path / "config.json").write_text(json.dumps(config("llama", **changes)))
    return first_job(tmp_path, DATA, machine, precision)


def test_it_is_a_job_that_fits_as_it_is_written(tmp_path: Path) -> None:
    for gpu_gib in (192, 60, 40, 24):
        found = made(tmp_path, Machine(8, gpu_gib * GIB, 2000 * GIB), **WIDE)
        spec = job_from_dict(dict(found.tree), source="job")
        work = workload_of(spec)
        row = found.estimate.choice.row
        assert row is not None
        assert work.micro == found.estimate.work.micro
        assert work.layout.stage == row.stage
        assert row.fits
        assert 1 <= spec.train.batch_size // 8 <= 8


def test_memory_decides_the_batch(tmp_path: Path) -> None:
    batches = []
    for gpu_gib in (192, 80, 48):
        tree = made(tmp_path, Machine(8, gpu_gib * GIB, 2000 * GIB), **WIDE).tree
        batches.append((tree["zero"]["stage"], tree["train"]["batch_size"]))
    assert batches == sorted(batches, key=lambda each: (each[0], -each[1]))


def test_weights_are_fine_tuned_and_a_config_is_not(tmp_path: Path) -> None:
    machine = Machine(1, 80 * GIB, 100 * GIB)
    fresh = made(tmp_path, machine)
    assert fresh.tree["model"] == {"config": str(tmp_path / "config.json")}
    assert fresh.tree["train"]["learning_rate"] == 3e-4
    assert fresh.tree["data"]["tokenizer"] == "bytes"
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "tokenizer.json").touch()
    tuned = made(tmp_path, machine)
    assert tuned.tree["model"] == {"path": str(tmp_path)}
    assert tuned.tree["train"]["learning_rate"] == 1e-5
    assert "tokenizer" not in tuned.tree["data"]


def test_every_comment_is_of_a_key_or_of_none(tmp_path: Path) -> None:
    found = made(tmp_path, Machine(2, 80 * GIB, 100 * GIB))
    text = to_toml(found.tree, found.comments)
    assert "gpus = 2  # estimated: " in text
    assert "# plain text" in text
    assert "stage = 0  # stage 0 is the fastest that fits" in text


def test_where_nothing_fits_it_says_what_would(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"nothing fits: .* such GPUs would do"):
        made(tmp_path, Machine(1, 12 * GIB, 16 * GIB), **WIDE)


def test_on_the_cpu_it_has_ranks(tmp_path: Path) -> None:
    tree = made(tmp_path, Machine(1, 0, 100 * GIB, on_gpu=False), "fp32").tree
    assert (tree["device"], tree["ranks"]) == ("cpu", 1)
    assert "gpus" not in tree
