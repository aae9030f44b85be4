"""The job in a text that a client sends: a job file, DeepSpeed's config, or both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.http.api.import_job_file import conversion_job, imported_job

JOB = """
gpus = 2
[model]
path = "/models/tiny"
[data]
text = ["/data/*.txt"]
[train]
steps = 10
batch_size = 8
"""
CONFIG = json.dumps(
    {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
    }
)


def test_a_job_file_is_the_job_that_it_says() -> None:
    found = imported_job(JOB, None, "tiny.toml")
    spec = job_from_dict(found["job"], source="job")
    assert (spec.name, spec.train.steps, spec.gpus) == ("tiny", 10, 2)
    assert (found["missing"], found["notes"]) == ([], [])
    assert found["text"] == JOB


def test_deepspeeds_config_is_a_job_file_to_complete() -> None:
    found = imported_job(CONFIG, None, "ds.json")
    assert found["job"] is None
    assert found["missing"] == ["model.path", "data.text", "train.steps"]
    assert "[zero]\nstage = 2  # ds.json:1 zero_optimization.stage" in found["text"]
    assert "#   model.path, or model.config to start from random weights" in found["text"]
    assert "not in the config: defaults, written out" in found["notes"]
    text = found["text"].replace("[train]", "[train]\nsteps = 10")
    whole = f"""{text}
[model]
path = "/m"
[data]
text = ["/d"]
"""
    spec = job_from_dict(imported_job(whole, None, "job.toml")["job"], source="job")
    assert (spec.zero.stage, spec.train.micro_batch_size, spec.train.steps) == (2, 2, 10)


def test_a_note_is_one_text_however_long_it_is() -> None:
    """The page shows each note as a paragraph."""
    keys = [f"unknown_key_{number}_of_a_newer_release" for number in range(4)]
    config = json.dumps(json.loads(CONFIG) | dict.fromkeys(keys, 1))
    notes = imported_job(config, None, "ds.json")["notes"]
    assert ", ".join(keys) in notes[notes.index("unknown, not read") + 1]


def test_a_job_file_with_deepspeeds_config_is_one_job() -> None:
    found = imported_job(JOB, CONFIG, "tiny.toml")
    spec = job_from_dict(found["job"], source="job")
    assert (spec.zero.stage, spec.train.batch_size, spec.train.micro_batch_size) == (2, 8, 2)
    with pytest.raises(BadRequest, match="batch_size"):
        imported_job(JOB.replace("= 8", "= 9"), CONFIG, "tiny.toml")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("steps =", "job.toml:1:8: is not valid TOML"),
        (JOB.replace("steps = 10", "steps = 0"), "job.toml:8: train.steps"),
        (JOB.replace("/models/tiny", "models/tiny"), "job.toml:4: model.path"),
        (JOB.replace("/models/tiny", "~/tiny"), "must be an absolute path"),
    ],
)
def test_what_is_no_job_is_refused_at_its_line(text: str, why: str) -> None:
    with pytest.raises(BadRequest) as caught:
        imported_job(text, None, "job.toml")
    assert why in str(caught.value)


def test_no_file_is_read(tmp_path: Path) -> None:
    """The daemon may be root: a path in a text must not tell what is there."""
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    config: dict[str, Any] = json.loads(CONFIG)
    config["zero_optimization"] |= {"stage": 3, "reduce_bucket_size": "auto"}
    texts = [
        imported_job(JOB.replace("/models/tiny", str(path)), json.dumps(config), "tiny.toml")
        for path in (tmp_path, "/nowhere")
    ]
    assert texts[0]["notes"] == texts[1]["notes"]


def test_a_conversion_is_the_job_of_submit_convert() -> None:
    spec = job_from_dict(conversion_job(["consolidate", "/runs/a/step-3", "/out"]), source="job")
    assert spec.script.command[:3] == ("-m", "zerotools", "consolidate")
    assert spec.script.command[-2:] == ("/runs/a/step-3", "/out")
    assert conversion_job(["verify", "/runs/a"])["max_restarts"] == 0
    for words in ([], ["rm", "/"], ["verify", 3], "verify", ["verify", "--help"], ["verify", "a"]):
        with pytest.raises(BadRequest):
            conversion_job(words)
