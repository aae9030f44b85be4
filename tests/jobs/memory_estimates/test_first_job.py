"""The job that `zerotools init` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ops.estimate.tiny_configs import config
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.memory_estimates.fill_missing_keys import RATES
from zerotools.jobs.memory_estimates.find_models_and_data import (
    EXAMPLES,
    PREFERENCES,
    TEXT,
    FoundData,
)
from zerotools.jobs.memory_estimates.first_job import (
    FULL,
    LORA,
    METHODS,
    QLORA,
    FirstJob,
    FirstTraining,
    first_job,
)
from zerotools.jobs.memory_estimates.job_workload import workload_of
from zerotools.jobs.text.toml_writer import to_toml
from zerotools.ops.estimate.rank_memory import Machine

GIB = 1 << 30
DATA = FoundData("/data/*.txt", "text")
WIDE = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
WIDE |= {
    "vocab_size": 256,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
}


def made(
    tmp_path: Path,
    machine: Machine,
    precision: str = "bf16",
    *,
    method: str = FULL,
    data: FoundData = DATA,
    free_disk: int | None = None,
    **changes: int,
) -> FirstJob:
    (tmp_path / "config.json").write_text(
        json.dumps(config("llama", **{"vocab_size": 256, **changes}))
    )
    wanted = FirstTraining(
        model=tmp_path,
        data=data,
        precision=precision,
        method=method,
        directory=tmp_path,
        free_disk=free_disk,
    )
    return first_job(wanted, machine)


def test_it_is_a_job_that_fits_as_it_is_written(tmp_path: Path) -> None:
    for gpu_gib in (192, 60, 40, 24):
        found = made(tmp_path, Machine(8, gpu_gib * GIB, 2000 * GIB), **WIDE)
        spec = job_from_dict(dict(found.tree), source="job")
        work = workload_of(spec)
        assert work.micro == found.way.work.micro
        assert work.layout == found.way.row.layout
        assert found.way.row.fits
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
    with_weights(tmp_path)
    tuned = made(tmp_path, machine)
    assert tuned.tree["model"] == {"path": str(tmp_path)}
    assert tuned.tree["train"]["learning_rate"] == 2e-5
    assert tuned.tree["data"]["tokenizer"] == str(tmp_path)  # without it, tokens are bytes


def test_every_comment_is_of_a_key_or_of_none(tmp_path: Path) -> None:
    found = made(tmp_path, Machine(2, 80 * GIB, 100 * GIB))
    text = to_toml(found.tree, found.comments)
    assert "gpus = 2  # estimated: " in text
    assert "# plain text" in text
    assert "stage = 0  # stage 0 is the fastest that fits" in text


def test_where_nothing_fits_it_says_what_would(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"nothing fits.*: the nearest is .* GPUs would do"):
        made(tmp_path, Machine(1, 12 * GIB, 16 * GIB), **WIDE)


def test_the_nearest_has_all_that_it_takes(tmp_path: Path) -> None:
    said = (
        r"the nearest is .*, which takes [\d.]+ GiB of a GPU's 12\.0 GiB, [\d.]+ GiB of the host's "
        r"16\.0 GiB and [\d.]+ GiB of disk"
    )
    with pytest.raises(BadRequest, match=said):
        made(tmp_path, Machine(1, 12 * GIB, 16 * GIB), **WIDE)


def with_weights(directory: Path) -> None:
    (directory / "model.safetensors").touch()
    (directory / "tokenizer.json").touch()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [TEXT, EXAMPLES, PREFERENCES])
def test_every_method_and_kind_of_data_makes_a_job_that_is_accepted(
    tmp_path: Path, method: str, kind: str
) -> None:
    """The memory of the job file is that of the way it was made of."""
    with_weights(tmp_path)
    data = FoundData("/data/*.jsonl", kind)
    found = made(tmp_path, Machine(2, 24 * GIB, 100 * GIB), method=method, data=data)
    spec = job_from_dict(dict(found.tree), source="job")
    work = workload_of(spec)
    assert (work.layout, work.micro) == (found.way.row.layout, found.way.work.micro)
    assert (spec.lora.rank is None) == (method == FULL)
    assert spec.lora.packs_frozen == (method == QLORA)
    assert spec.train.learning_rate == RATES[kind, method != FULL]
    assert bool(spec.data.preferences) == (kind == PREFERENCES)


def test_examples_need_a_tokenizer_and_conversations_a_template(tmp_path: Path) -> None:
    machine = Machine(1, 80 * GIB, 100 * GIB)
    with pytest.raises(BadRequest, match="has no tokenizer, but"):
        made(tmp_path, machine, data=FoundData("/a.jsonl", EXAMPLES))
    with_weights(tmp_path)
    talks = FoundData("/a.jsonl", EXAMPLES, is_conversation=True)
    with pytest.raises(BadRequest, match=r"/a\.jsonl: has conversations, .* no chat template"):
        made(tmp_path, machine, data=talks)
    (tmp_path / "chat_template.jinja").touch()
    assert made(tmp_path, machine, data=talks).tree["data"]["examples"] == ["/a.jsonl"]


def test_where_only_adapters_fit_that_is_said(tmp_path: Path) -> None:
    with_weights(tmp_path)
    small = Machine(1, 12 * GIB, 8 * GIB)
    with pytest.raises(BadRequest, match=r"weights are trained.*nearest is.*--method qlora would"):
        made(tmp_path, small, **WIDE)
    assert made(tmp_path, small, method=QLORA, **WIDE).tree["lora"]["frozen_precision"] == "nf4"


def test_adapters_need_weights(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="has no weights"):
        made(tmp_path, Machine(1, 80 * GIB, 100 * GIB), method=LORA)


def test_a_disk_that_is_full_is_no_way(tmp_path: Path) -> None:
    machine = Machine(1, 24 * GIB, 32 * GIB)
    found = made(tmp_path, machine, free_disk=100 * GIB, **WIDE)
    assert found.tree["offload"] == {"optimizer": "disk", "path": str(tmp_path / "offload")}
    with pytest.raises(BadRequest, match=r"GiB of disk, but only 9\.0 GiB are free"):
        made(tmp_path, machine, free_disk=9 * GIB, **WIDE)


def test_another_of_the_ways_may_be_chosen(tmp_path: Path) -> None:
    with_weights(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config("llama", **WIDE)))
    wanted = FirstTraining(model=tmp_path, data=DATA, precision="bf16", directory=tmp_path)
    found = first_job(wanted, Machine(1, 24 * GIB, 32 * GIB), lambda ways: ways[-1])
    assert found.tree["lora"]["rank"] == 16
    assert found.tree["train"]["learning_rate"] == 1e-4


def test_on_the_cpu_it_has_ranks(tmp_path: Path) -> None:
    tree = made(tmp_path, Machine(1, 0, 100 * GIB, on_gpu=False), "fp32").tree
    assert (tree["device"], tree["ranks"]) == ("cpu", 1)
    assert "gpus" not in tree


def test_bytes_need_a_vocabulary_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="has a vocabulary of 96 and no tokenizer, but"):
        made(tmp_path, Machine(1, 80 * GIB, 100 * GIB), vocab_size=96)
