"""What DeepSpeed is given is shown as a diff of the file, and queued with the job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.jobs.imports.jobs import JOB, a_job, ds_text, said
from zerotools.jobs.imports.combine import Imported, import_configs
from zerotools.jobs.text.json_text import parse_json

ENGINE = 'engine = "deepspeed"\n' + JOB + "batch_size = 8\n"
BLOG = """{
    "train_micro_batch_size_per_gpu": "auto",  // per card
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "zero_optimization": {
        "stage": "2",
        "reduce_bucket_size": 5e8,
    }
}
"""


def given(imported: Imported) -> Any:
    assert imported.spec is not None, imported.problem
    return imported.spec.deepspeed.config


def test_the_diff_is_that_of_the_file_as_it_was_written() -> None:
    document = parse_json(BLOG, source="ds.json", lenient=True)
    found = import_configs(a_job(ENGINE), deepspeed=document)
    assert '-    "train_micro_batch_size_per_gpu": "auto",  // per card' in found.changes
    assert '+    "train_micro_batch_size_per_gpu": 4,' in found.changes
    assert '-        "reduce_bucket_size": 5e8,' in found.changes
    assert '+        "reduce_bucket_size": 500000000' in found.changes
    assert found.changes[:2] == ("--- ds.json", "+++ ds.json as DeepSpeed has it")
    assert given(found)["zero_optimization"]["stage"] == 2
    assert given(found)["optimizer"]["params"] == {"lr": 5e-5}


def test_a_file_in_one_line_is_shown_reformatted() -> None:
    found = ds_text('{"zero_optimization": {"stage": "3"}}', a_job(ENGINE))
    assert '-    "stage": "3"' in found.changes
    assert '+    "stage": 3' in found.changes


def test_nothing_to_change_shows_nothing_and_engine_torch_has_no_diff() -> None:
    first = ds_text(BLOG.replace("  // per card", "").replace("5e8,", "5e8"), a_job(ENGINE))
    whole = parse_json(json.dumps(given(first)), source="ds.json")
    assert import_configs(a_job(ENGINE), deepspeed=whole).changes == ()
    assert ds_text('{"zero_optimization": {"stage": "3"}}', a_job()).changes == ()


def test_a_table_of_the_job_file_is_read_alike() -> None:
    text = f'{ENGINE}[deepspeed.config]\nzero_optimization.stage = "1"\n'
    found = import_configs(a_job(text))
    assert given(found)["zero_optimization"] == {"stage": 1}
    assert found.tree["zero"] == {"stage": 1}
    twice = replace(a_job(text), source="job.toml")
    assert "job.toml deepspeed.config: cannot be combined with ds.json" in said(
        ds_text("{}", twice)
    )


def test_a_disagreement_names_both_places() -> None:
    text = ENGINE.replace("steps = 1000", "steps = 1000\nlearning_rate = 1e-3")
    config = '{"optimizer": {"type": "AdamW", "params": {"lr": 0.1}}}'
    message = said(ds_text(config, a_job(text)))
    assert "ds.json:1 optimizer.params.lr" in message
    assert "job.toml train.learning_rate" in message
