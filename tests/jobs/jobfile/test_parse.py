"""The job file parser: what it accepts, what it refuses, and how it says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadRequest, Unsupported, ZerotoolsError
from zerotools.jobs.jobfile.parse import (
    job_from_dict,
    job_to_dict,
    line_excerpt,
    line_of,
    parse_job,
)
from zerotools.jobs.jobfile_tables.fp16 import Fp16Spec
from zerotools.jobs.jobfile_tables.spec import FP16_ON_CPU, JobSpec

BASE = Path("/base/dir")


JOB = """\
# a comment
device = "cpu"

[data]
text = [
    "a.txt",
    # steps = 1
]

[train]
batch_size = 4
stepps = 3
"""


def tree(**changes: Any) -> dict[str, Any]:
    """A valid job, changed by dotted keys (`train__steps=3`); `...` removes the key."""
    job: dict[str, Any] = {
        "device": "cpu",
        "ranks": 2,
        "model": {"config": {"model_type": "llama", "pad_token_id": None}},
        "data": {"text": ["/texts/*.py"]},
        "train": {"steps": 10, "batch_size": 8},
    }
    for name, value in changes.items():
        *tables, last = name.split("__")
        table = job
        for part in tables:
            table = table.setdefault(part, {})
        if value is ...:
            del table[last]
        else:
            table[last] = value
    return job


def parsed(**changes: Any) -> JobSpec:
    return job_from_dict(tree(**changes), source="job.toml")


def refusal(**changes: Any) -> str:
    with pytest.raises(BadRequest) as info:
        parsed(**changes)
    return str(info.value)


def test_toml_and_json_give_the_same_spec() -> None:
    toml = """
    name = "a"
    device = "cpu"
    ranks = 2
    [model.config]
    model_type = "llama"
    [data]
    text = ["texts/*.py"]
    [train]
    steps = 10
    batch_size = 8
    """
    job = tree(name="a", data__text=["texts/*.py"], model__config={"model_type": "llama"})
    from_toml = parse_job(toml, source="x.toml", base_dir=BASE)
    from_json = parse_job(json.dumps(job), source="x.json", base_dir=BASE)
    assert from_toml == from_json
    assert from_toml.data.text == ("/base/dir/texts/*.py",)


def test_the_name_defaults_to_that_of_the_file() -> None:
    text = json.dumps(tree())
    assert parse_job(text, source="some/tiny-llama.toml", base_dir=BASE).name == "tiny-llama"
    assert parse_job(text, source="some/12.toml", base_dir=BASE).name is None
    assert parse_job(text, source="some/007.toml", base_dir=BASE).name == "007"
    assert parse_job(text, source="-", base_dir=BASE).name is None


@pytest.mark.parametrize(
    ("key", "get"),
    [
        ("output_dir", lambda s: s.output_dir),
        ("resume_from", lambda s: s.resume_from),
        ("python", lambda s: s.python),
        ("data__tokenizer", lambda s: s.data.tokenizer),
    ],
)
def test_relative_paths_are_taken_from_the_base_directory(key: str, get: Any) -> None:
    spec = parse_job(json.dumps(tree(**{key: "../x/y"})), source="-", base_dir=BASE)
    assert get(spec) == "/base/x/y"
    assert f'{key.replace("__", ".")} = "../x/y": must be an absolute path' in refusal(
        **{key: "../x/y"}
    )


def test_a_model_path_is_taken_from_the_base_directory() -> None:
    job = tree(model={"path": "m"})
    assert parse_job(json.dumps(job), source="-", base_dir=BASE).model.path == "/base/dir/m"


def test_a_bare_python_is_looked_up() -> None:
    spec = parse_job(json.dumps(tree(python="sh")), source="-", base_dir=BASE)
    assert spec.python is not None
    assert spec.python.endswith("/sh")
    with pytest.raises(BadRequest, match="PATH has no such program"):
        parse_job(json.dumps(tree(python="no-such-python")), source="-", base_dir=BASE)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sede": 1}, "sede: unknown key; did you mean seed?"),
        ({"train__step": 1}, "train.step: unknown key; did you mean train.steps?"),
        ({"train__zzz": 1}, "train.zzz: unknown key; known keys: steps, epochs, batch_size"),
        ({"train__steps": ...}, "train: needs train.steps or train.epochs"),
        ({"data": ...}, "data: the table [data] is missing"),
        ({"data": 3}, "data: must be a table, not 3"),
        ({"train__steps": "10"}, 'train.steps = "10": must be a whole number'),
        ({"train__steps": 10.0}, "train.steps = 10.0: must be a whole number"),
        ({"train__steps": True}, "train.steps = true: must be a whole number"),
        ({"train__batch_size": None}, "train.batch_size = None: must be a whole number"),
        ({"train__steps": 0}, "train.steps = 0: must be at least 1"),
        ({"train__epochs": 0}, "train.epochs = 0: must be more than 0"),
        ({"train__epochs": 3}, "train.steps and train.epochs cannot be combined"),
        ({"train__steps": 10**400}, "must fit in 64 bits"),
        ({"train__learning_rate": 0}, "train.learning_rate = 0: must be more than 0"),
        ({"train__learning_rate": float("nan")}, "must be a finite number"),
        ({"train__learning_rate": 10**400}, "must be a finite number"),
        ({"train__precision": "f16"}, 'one of "fp32", "bf16", "fp16"; did you mean "fp16"?'),
        ({"fp16__hysteresis": 3}, 'fp16: cannot be used in a train.precision = "bf16" job'),
        (
            {"train__precision": "fp16", "fp16__initial_scale_power": 2, "fp16__min_loss_scale": 5},
            "fp16.min_loss_scale = 5: must be at most the first scale, which is 4",
        ),
        ({"device": "gpu"}, 'device = "gpu": must be one of "cuda", "cpu"'),
        ({"zero__stage": 4}, "zero.stage = 4: must be one of 0, 1, 2, 3"),
        ({"seed": 2**63}, "must fit in 64 bits"),
        ({"data__text": "a.py"}, 'data.text = "a.py": must be a list'),
        ({"data__text": ["/a", 3]}, "entry 1 (3) must be a string"),
        (
            {"data__text": []},
            "data: one of data.text, data.tokens, data.examples and data.preferences must",
        ),
        ({"data__text": ["/a\0"]}, "must not contain a NUL"),
        ({"name": "\ud800"}, "must be valid Unicode text"),
        ({"name": ""}, "must be 1 to 200 printable characters"),
        ({"name": "a\nb"}, "must be 1 to 200 printable characters"),
        ({"name": "12"}, 'name = "12": commands would take it for the number of a job or an array'),
        ({"name": "@arr"}, "add a letter in front"),
        ({"name": "slurm:3"}, "add a letter in front"),
        ({"env": {"A": 1}}, "env = a table: its key A must be a string"),
        ({"env": {"A=B": "x"}}, "env.A=B: is not a name for an environment variable"),
        ({"env": {"RANK": "x"}}, "env.RANK: is set by the daemon"),
        ({"gpus": 1}, 'gpus = 1: cannot be used in a device = "cpu" job; set ranks instead'),
        ({"device": "cuda"}, 'ranks = 2: cannot be used in a device = "cuda" job'),
        ({"device": "cuda", "ranks": ..., "gpus": 0}, "gpus = 0: must be at least 1"),
        ({"device": "cuda", "ranks": ..., "gpus": []}, "must name at least one GPU"),
        ({"device": "cuda", "ranks": ..., "gpus": [0, 0]}, "gpus = [0, 0]: names a GPU twice"),
        ({"device": "cuda", "ranks": ..., "gpus": [-1]}, "must be at least 0, not -1"),
        ({"device": "cuda", "ranks": ..., "gpus": ["0"]}, 'a UUID; a UUID starts with "GPU-"'),
        ({"device": "cuda", "ranks": ..., "gpus": [True]}, "must be a whole number or a string"),
        ({"device": "cuda", "ranks": ..., "gpus": "all"}, "must be a whole number or a list"),
        ({"model": {}}, "needs model.path, or model.config"),
        ({"model__path": "/m"}, "cannot be combined"),
        ({"ranks": 3}, "train.batch_size = 8: must be divisible by the 3 ranks"),
        ({"train__micro_batch_size": 3}, "must divide the 4 sequences of a rank"),
        ({"train__warmup_steps": 11}, "must be at most train.steps, which is 10"),
        ({"train__min_learning_rate": 1.0}, "must be at most train.learning_rate"),
        (
            {"train__schedule": "linear", "train__min_learning_rate": 1.0},
            "must be at most train.learning_rate",
        ),
        ({"data__examples": ["/e"]}, "data.text and data.examples cannot be combined"),
        ({"data__packing": True}, "data.packing = true: cannot be combined with data.text"),
        (
            {"data__text": [], "data__tokens": ["/a.bin"]},
            "token_type: is missing; set it, because /a.bin does not",
        ),
        (
            {"data__token_type": "uint16"},
            'token_type = "uint16": cannot be combined with data.text',
        ),
        (
            {"data__text": [], "data__examples": ["/e"]},
            "data.examples needs a Hugging Face tokenizer",
        ),
        (
            {
                "data": {
                    "examples": ["/e"],
                    "tokenizer": "/t",
                    "prompt_column": "a",
                    "response_column": "a",
                }
            },
            'must differ, but are "a", "a"',
        ),
        ({"lora__alpha": 5}, "lora.rank: is missing; set it, or leave [lora] out"),
        ({"lora__rank": 4, "lora__dropout": 1}, "lora.dropout = 1.0: must be less than 1"),
        ({"eval__every": 5}, "eval: needs eval.files or eval.fraction"),
        (
            {"eval__files": ["/e"], "eval__fraction": 0.1},
            "eval.files and eval.fraction cannot be combined",
        ),
        ({"eval__fraction": 1}, "eval.fraction = 1.0: must be less than 1"),
        ({"train__decay_steps": 2}, 'cannot be used in a train.schedule = "cosine" job'),
        (
            {"train__schedule": "wsd", "train__decay_steps": 6, "train__warmup_steps": 5},
            "together with train.warmup_steps = 5 it exceeds train.steps = 10",
        ),
        (
            {"train__momentum": 0.5},
            'cannot be used in a train.optimizer = "adamw" job; leave it out',
        ),
        ({"train__optimizer": "sgd", "train__eps": 1e-6}, 'out, or set "adamw"'),
        (
            {"train__optimizer": "adafactor", "train__betas": [0.9, 0.98]},
            'train.betas = [0.9, 0.98]: cannot be used in a train.optimizer = "adafactor" job',
        ),
        ({"train__momentum": 1.0}, "train.momentum = 1.0: must be less than 1"),
        (
            {"resume_order": "model"},
            "resume_order = model: has an effect only with resume_from; set resume_from",
        ),
        (
            {"checkpoint": {"export_on_finish": "adapter"}},
            'checkpoint.export_on_finish = "adapter": the job trains no adapters; set lora.rank, '
            'or export the model as "bf16"',
        ),
        (
            {"lora": {"path": "/adapter"}},
            "lora.rank: is missing",
        ),
        (
            {"dpo": {"beta": 0.3}},
            "dpo.beta = 0.3: cannot be used in a job with data.text; leave it out, or name "
            "data.preferences",
        ),
        (
            {"data": {"preferences": ["/p.jsonl"]}},
            "data.preferences needs a Hugging Face tokenizer",
        ),
        (
            {"data": {"preferences": ["/p.jsonl"], "tokenizer": "/t"}, "engine": "deepspeed"},
            'data.preferences: only engine = "torch" has this key',
        ),
        (
            {"train__optimizer": "moun"},
            '"sgd", "adafactor", "muon", "adamw8bit"; did you mean "muon"?',
        ),
        (
            {"train__optimizer": "adamw_hf"},
            '"adafactor", "muon", "adamw8bit"; did you mean "adamw"?',
        ),
        (
            {"train__muon_learning_rate": 0.02},
            "train.muon_learning_rate = 0.02: cannot be used in a "
            'train.optimizer = "adamw" job; leave it out, or set "muon"',
        ),
        (
            {"train__optimizer": "muon", "train__muon_momentum": 1.0},
            "train.muon_momentum = 1.0: must be less than 1",
        ),
        ({"train__betas": [0.9]}, "train.betas = [0.9]: must be two numbers in [0, 1)"),
        ({"train__betas": [0.9, 1]}, "must be two numbers in [0, 1)"),
    ],
)
def test_a_refusal_names_the_key_the_value_and_what_is_allowed(
    changes: dict[str, Any], sentence: str
) -> None:
    message = refusal(**changes)
    assert message.startswith("job.toml: ")
    assert sentence in message


def test_every_problem_is_listed_at_once() -> None:
    message = refusal(sede=1, train__steps="x", train__batch_size=0)
    assert "3 problems" in message
    assert len(message.splitlines()) == 4


def test_a_flood_of_unknown_keys_is_counted_not_listed() -> None:
    message = refusal(**{f"key{n}": 1 for n in range(50_000)})
    assert len(message.splitlines()) == 22
    assert message.endswith("job: 49980 more unknown keys")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"train__precision": "fp16"}, 'on device = "cpu" use "bf16" or "fp32"'),
        ({"train__precision": "fp16", "env": {FP16_ON_CPU: "0"}}, "is for GPUs"),
    ],
)
def test_legitimate_but_absent_features_are_unsupported(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(Unsupported, match=key):
        parsed(**changes)


def test_fp16_is_for_gpus_and_for_whom_the_seam_is() -> None:
    gpus = parsed(train__precision="fp16", device="cuda", ranks=..., fp16={"loss_scale": 8})
    assert gpus.fp16 == Fp16Spec(loss_scale=8.0)
    seam = parsed(train__precision="fp16", env={FP16_ON_CPU: "1"})
    assert job_from_dict(job_to_dict(seam), source="-") == seam


@pytest.mark.parametrize(
    "text",
    [
        "a = ",
        "{",
        '{"a": 1, "a": 2}',
        '{"seed": NaN}',
        "\0",
        '{"a": ' + "[" * 100_000,
        "a = " + "[" * 100_000,
        '{"seed": ' + "9" * 5000 + "}",
        "[]",
        "",
    ],
    ids=range(10),
)
def test_text_that_is_no_job_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(BadRequest, match=r"^job\.toml:"):
        parse_job(text, source="job.toml", base_dir=BASE)


def test_deep_or_foreign_values_in_a_model_config_are_refused() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert "nested deeper" in refusal(model={"config": {"a": deep}})
    toml = 'device = "cpu"\n[model]\nconfig = {a = 2020-01-01}\n'
    with pytest.raises(BadRequest, match="must not contain a date"):
        parse_job(toml, source="x.toml", base_dir=BASE)


def test_a_null_in_the_model_config_survives() -> None:
    spec = parsed()
    assert job_to_dict(spec)["model"]["config"] == {"model_type": "llama", "pad_token_id": None}


names = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=8)
jobs = st.fixed_dictionaries(
    {
        "device": st.just("cpu"),
        "ranks": st.sampled_from([1, 2, 4]),
        "seed": st.integers(0, 2**63 - 1),
        "env": st.dictionaries(names.map(lambda n: f"V_{n}"), names),
        "model": st.fixed_dictionaries(
            {"config": st.dictionaries(names, st.none() | st.integers(0, 9) | st.lists(names))}
        ),
        "data": st.fixed_dictionaries(
            {"text": st.lists(names.map(lambda n: f"/{n}"), min_size=1, max_size=3)}
        ),
        "train": st.fixed_dictionaries(
            {
                "steps": st.integers(1, 100),
                "batch_size": st.sampled_from([4, 8, 12]),
                "betas": st.lists(st.floats(0, 0.999), min_size=2, max_size=2),
                "learning_rate": st.floats(1e-9, 1),
            }
        ),
    }
)


@given(jobs)
def test_a_spec_survives_the_trip_to_json_and_back(job: dict[str, Any]) -> None:
    spec = job_from_dict(job, source="job")
    again = job_from_dict(json.loads(json.dumps(job_to_dict(spec))), source="job")
    assert again == spec


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(list(JobSpec.__dataclass_fields__)), anything)
def test_no_value_makes_the_parser_crash(key: str, value: Any) -> None:
    try:
        spec = job_from_dict(tree(**{key: value}), source="job")
    except ZerotoolsError:
        return
    json.dumps(job_to_dict(spec))


def test_a_job_that_the_first_version_queued_is_still_read() -> None:
    """As it lay in the store before there were other engines than torch."""
    tree = json.loads(
        '{"checkpoint": {"every": 2, "keep_last": 2}, "data": {"sequence_length": 256, "text": '
        '["/a.txt"], "tokenizer": "bytes"}, "device": "cpu", "engine": "torch", "env": {}, "fp16": '
        '{"consecutive_hysteresis": false, "hysteresis": 2, "initial_scale_power": 16, '
        '"loss_scale": 0.0, "loss_scale_window": 1000, "min_loss_scale": 1.0}, "max_restarts": 3, '
        '"model": {"config": {}}, "name": "j", "output_dir": "/out", "ranks": 2, "seed": 0, '
        '"train": {"activation_checkpointing": false, "batch_size": 4, "betas": [0.9, 0.95], '
        '"eps": 1e-08, "learning_rate": 0.0003, "max_grad_norm": 1.0, "min_learning_rate": 0.0, '
        '"momentum": 0.9, "optimizer": "sgd", "precision": "bf16", "schedule": "cosine", "steps": '
        '5, "warmup_steps": 0, "weight_decay": 0.1}, "zero": {"stage": 3}}'
    )
    spec = job_from_dict(tree, source="job 1")
    assert (spec.data.tokenizer, spec.checkpoint.keep_last, spec.train.steps) == ("bytes", 2, 5)
    assert spec.train.optimizer == "sgd"


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("device", 2),
        ("data", 4),
        ("data.text", 5),
        ("train.stepps", 12),
        ("train.steps", None),
        ("device.x", None),
    ],
)
def test_the_line_of_a_key(key: str, line: int | None) -> None:
    assert line_of(JOB, key) == line


def test_keys_in_strings_and_inline_tables_do_not_mislead() -> None:
    text = 'a = """\nb = 1\n"""\nc = { b = 2, d = 3 }\n"b" = 4\n'
    assert (line_of(text, "b"), line_of(text, "c.d")) == (5, 4)


def refusal_positions(text: str) -> str:
    with pytest.raises(BadRequest) as caught:
        parse_job(text, source="job.toml", base_dir=Path("/"))
    return str(caught.value)


def test_a_wrong_key_is_named_with_its_line() -> None:
    model = '[model.config]\nmodel_type = "llama"\n'
    wrong = JOB.replace("stepps = 3", "steps = 3\nlr = 1") + model
    said = "train.lr: unknown key; did you mean train.learning_rate?"
    assert refusal_positions(wrong) == f"job.toml:13: {said}"
    both = wrong.replace('"cpu"', '"gpu"')
    lines = refusal_positions(both).splitlines()
    assert lines[0] == "job.toml: 2 problems:"
    assert lines[1].startswith("  line 2: device = ")
    assert lines[2].startswith("  line 13: train.lr: unknown key")


def test_json_job_files_have_lines_too() -> None:
    said = refusal_positions(
        '{\n  "device": "cpu",\n  "train": {"batch_size": 1,\n   "stepps": 2}\n}'
    )
    assert "line 4: train.stepps: unknown key" in said or said.startswith("job.toml:4:")


@pytest.mark.parametrize(
    ("text", "place", "caret"),
    [
        ("learning rate = 1", "1:10", "  1 | learning rate = 1\n    |          ^"),
        ("a = 1\nb = [", "2:6", "  2 | b = [\n    |      ^"),
        ('{"a": 1,\n\t"b" 2}', "2:6", '  2 |     "b" 2}\n    |         ^'),
    ],
)
def test_what_cannot_be_read_is_shown(text: str, place: str, caret: str) -> None:
    said = refusal_positions(text)
    assert said.startswith(f"job.toml:{place}: is not valid ")
    assert said.endswith(caret)


def test_an_excerpt_of_an_empty_file() -> None:
    assert line_excerpt("", 1, 1) == "  1 | \n    | ^"
