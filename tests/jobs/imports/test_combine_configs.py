"""What comes out is a job file: it is read again as the same job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.imports.jobs import BASE, CONFIGS, JOB, a_job, ds, ds_text, outcomes, report, said
from zerotools.core.errors import Unsupported
from zerotools.jobs.imports.combine_configs import Imported, JobFile, hidden_size, import_configs
from zerotools.jobs.imports.reading.import_report import report_lines
from zerotools.jobs.imports.reading.look_up_job_keys import accepts_value, look_up
from zerotools.jobs.jobfile.parse import parse_job, read_tree
from zerotools.jobs.text.json_parser import parse_json
from zerotools.jobs.text.toml_writer import to_toml

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


@pytest.mark.parametrize("name", ["plain.json", "zero3_auto.json"])
def test_the_job_file_is_read_again_as_the_same_job(name: str, tmp_path: Path) -> None:
    ranks = JOB.replace("gpus = 2", "gpus = 4")
    imported = ds(name, a_job(ranks + "batch_size = 32\n"))
    assert imported.problem is None
    text = to_toml(imported.tree, imported.origins)
    # no path in it depends on where it lies
    assert parse_job(text, source="job.toml", base_dir=tmp_path) == imported.spec


def test_paths_become_absolute() -> None:
    imported = ds_text('{"train_batch_size": 8}', a_job())
    assert imported.tree["data"]["text"] == [str(BASE / "a.txt")]


def test_a_hidden_size_is_looked_up_in_the_models_directory(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"text_config": {"hidden_size": 8}}')
    job = JOB.replace("[model.config]", "[model]\npath = 'm'\n[env]")
    job = job.replace('model_type = "llama"', "").replace("hidden_size = 64", "")
    tree = read_tree(job + "batch_size = 8\n", source="job.toml")
    text = '{"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}'
    imported = ds_text(text, JobFile(tree, "job.toml", tmp_path))
    assert imported.findings.autos[0].value == 64


def test_without_a_job_file_what_no_config_says_is_missing() -> None:
    imported = ds("plain.json")
    assert imported.problem is None
    assert imported.spec is None
    assert imported.missing == ("model.path", "data.text", "train.steps")
    assert imported.tree["gpus"] == 4


def test_an_error_of_the_job_file_says_where_the_value_is_from() -> None:
    config = '{"optimizer": {"type": "AdamW", "params": {"betas": [1.5, 0.9]}}}'
    message = said(ds_text(config, a_job(JOB + "batch_size = 8\n")))
    assert message == (
        "job.toml: train.betas (of ds.json:1 optimizer.params.betas) = [1.5, 0.9]: "
        "must be two numbers in [0, 1)"
    )


def test_a_job_without_a_model_is_told_so() -> None:
    job = a_job(JOB.replace('model_type = "llama"\nhidden_size = 64', "").replace(".config", ""))
    assert "needs model.path, or model.config" in said(ds_text('{"train_batch_size": 8}', job))


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("ds.json:5 fp16.enabled", "train.precision", "fp16"),
        ("ds.json:7 fp16.initial_scale_power", "fp16.initial_scale_power", 16),
        ("ds.json:13 zero_optimization.stage", "zero.stage", 2),
        ("ds.json:15 zero_optimization.offload_optimizer.device", "offload.optimizer", "cpu"),
    ],
)
def test_two_cards_get_what_the_engine_can_and_are_refused_the_rest(
    place: str, key: str, value: object
) -> None:
    imported = ds("two_cards_stage2.json", a_job())
    if accepts_value(key, value):
        assert imported.origins[key] == place
        assert look_up(imported.tree, key) == value
    elif key == "fp16.initial_scale_power":
        assert outcomes(imported)[key] == "ignored"
    else:
        assert isinstance(imported.problem, Unsupported)
        assert f"{place} = " in said(imported)


def test_the_report_is_made_of_comments() -> None:
    imported = ds("plain.json", a_job(JOB.replace("gpus = 2", "gpus = 4")))
    lines = list(report_lines(imported.findings))
    assert lines
    assert all(line.startswith("#") for line in lines)
    assert (CONFIGS / "plain.json").exists()
    assert "gradient_clipping -> train.max_grad_norm" in report(imported)


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
    assert found.changes[:2] == ("--- ds.json", "+++ ds.json as DeepSpeed reads it")
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


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"model_type": "llama", "hidden_size": 64}, 64),
        ({"model_type": "llama"}, 4096),
        ({"model_type": "gpt2", "n_embd": 48}, 48),
        ({"model_type": "own", "hidden_sizes": [8, 32, 16]}, 32),
        ({"model_type": "own", "text_config": {"model_type": "qwen2", "hidden_size": 24}}, 24),
        ({"model_type": "own"}, None),
    ],
)
def test_it_is_that_of_the_class_where_the_config_does_not_say(
    tmp_path: Path, config: dict[str, Any], size: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert hidden_size({"model": {"path": "."}}, tmp_path) == size
    assert hidden_size({"model": {"config": config}}, tmp_path) == size
