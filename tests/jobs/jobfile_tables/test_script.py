"""Jobs of the engine script: what they need, what they refuse, and the trip to JSON and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict, parse_job
from zerotools.jobs.jobfile_tables.script import AdoptedProcess, adopted_process

TOML = """
engine = "script"
device = "cpu"
ranks = 2
[script]
command = ["train.py", "--lr", "1e-3"]
launcher = "torchrun"
checkpoint_dir = "../out"
"""


ALONE = 'job.toml: script: is for a job of engine = "script"'
TEXT = "812:180344:0d1c7a52-8b0f-4c53-9b1e-5d5c1c8f7e10"


def tree(**script: Any) -> dict[str, Any]:
    whole = {"command": ["train.py"], "directory": "/work", **script}
    return {"engine": "script", "device": "cpu", "ranks": 2, "script": whole}


def refusal(job: dict[str, Any]) -> str:
    with pytest.raises(BadRequest) as info:
        job_from_dict(job, source="job.toml")
    return str(info.value)


def test_paths_are_taken_from_the_job_file_and_so_is_the_working_directory() -> None:
    spec = parse_job(TOML, source="x.toml", base_dir=Path("/base/dir"))
    assert spec.script.directory == "/base/dir"
    assert spec.script.checkpoint_dir == "/base/out"
    assert spec.script.command == ("train.py", "--lr", "1e-3")
    assert "script.directory" in refusal({**tree(), "script": {"command": ["x"]}})


def test_the_json_of_a_script_job_has_nothing_of_our_engines() -> None:
    spec = parse_job(TOML, source="x.toml", base_dir=Path("/base"))
    text = json.dumps(job_to_dict(spec))
    assert job_from_dict(json.loads(text), source="-") == spec
    assert not {"model", "data", "train", "zero", "checkpoint", "seed"} & json.loads(text).keys()
    assert json.loads(text)["metrics"] == {"jsonl": True, "tensorboard": "auto"}


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        ({"engine": "script", "device": "cpu"}, "script: the table [script] is missing"),
        ({**tree(), "train": {"steps": 1, "batch_size": 1}}, "train: cannot be used in an engine"),
        ({**tree(), "zero": {}}, "zero: cannot be used in an engine"),
        ({**tree(), "seed": 0}, "seed: cannot be used in an engine"),
        (tree(command=[]), "script.command = []: must name a program"),
        (tree(launcher="mpirun"), 'must be one of "plain", "torchrun", "accelerate", "deepspeed"'),
        (tree(launcher_options=["-x"]), 'cannot be combined with script.launcher = "plain"'),
        (
            tree(command=["/usr/bin/python3", "t.py"], launcher="torchrun"),
            'torchrun starts the interpreter itself; leave "/usr/bin/python3" out',
        ),
        (
            tree(launcher="torchrun", launcher_options=["--nproc-per-node=8"]),
            "script.launcher_options: --nproc-per-node is set by the daemon; a "
            "second value would give torchrun other GPUs or ranks; leave it out",
        ),
        (
            tree(launcher="torchrun", launcher_options=["--rdzv-end", "host:1"]),
            "script.launcher_options: --rdzv-end is set by the daemon",
        ),
        (
            tree(launcher="accelerate", launcher_options=["--gpu_ids", "0,1"]),
            "--gpu_ids is set by the daemon",
        ),
        (
            {**tree(launcher="torchrun"), "env": {"PET_STANDALONE": "1"}},
            "env.PET_STANDALONE: is set by the daemon; a second value would give torchrun",
        ),
        (tree(launcher="accelerate"), "accelerate launch starts only one process on CPUs"),
        ({**tree(), "env": {"ZEROTOOLS_RESUME_FROM": "x"}}, "is set by the daemon"),
        (
            {**tree(), "time_limit": "two hours"},
            'time_limit = "two hours": must be a number of seconds',
        ),
        ({**tree(), "time_limit": "9999d"}, 'time_limit = "9999d": must be at most 3650 days'),
        ({**tree(), "gpus": 1}, 'cannot be used in a device = "cpu" job'),
        (
            {**tree(), "env": {"A": "x" * 131_070}},
            "env.A: is too long: the name, the = and the value have 131,072 bytes, and the kernel "
            "takes at most 131,071; write it to a file and pass the file's path",
        ),
        ({**tree(), "captured_env": {"LONG": "\u00e9" * 70_000}}, "captured_env.LONG: is too long"),
        ({**tree(), "env": {"N" * 140_000: ""}}, f"env.{'N' * 77}...: is too long"),
        (tree(command=["x", "y" * 131_072]), 'script.command: entry 1 ("yyy'),
        (tree(launcher="torchrun", launcher_options=["y" * 131_072]), "launcher_options: entry 0"),
    ],
)
def test_refusals_name_the_key(job: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(job)


def test_what_the_kernel_just_takes_is_taken() -> None:
    longest = {"A": "x" * (131_071 - len("A="))}
    assert job_from_dict({**tree(command=["x", "y" * 131_071]), "env": longest}, source="-")


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ({}, f'{ALONE}; add engine = "script" before the first table'),
        ({"engine": "torch"}, f'{ALONE}, and engine is "torch"; set engine = "script"'),
        ({"engine": "deepspeed"}, f'{ALONE}, and engine is "deepspeed"; set engine = "script"'),
        (
            {"engine": "scirpt"},
            'job.toml: engine = "scirpt": must be one of "torch", "deepspeed", "script"; did you '
            'mean "script"?',
        ),
        ({"engine": []}, "job.toml: engine = []: must be a string"),
    ],
)
def test_one_mistake_is_one_problem(engine: dict[str, Any], sentence: str) -> None:
    job = tree()
    del job["engine"]
    assert refusal({**job, **engine}) == sentence


def test_other_engines_refuse_a_script() -> None:
    job = {
        "device": "cpu",
        "model": {"config": {}},
        "data": {"text": ["/x"]},
        "train": {"steps": 1, "batch_size": 1},
        "script": {"command": ["x"]},
    }
    assert 'script: cannot be used in an engine = "torch" job' in refusal(job)
    del job["script"]
    assert "script" not in job_to_dict(job_from_dict(job, source="-"))


def job(**changes: Any) -> dict[str, Any]:
    script = {"command": ["python", "train.py"], "directory": "/", "adopted": TEXT}
    tree = {"name": "a", "engine": "script", "device": "cpu", "max_restarts": 0, "script": script}
    return {**tree, **changes}


def test_a_process_is_read_as_it_was_written() -> None:
    process = AdoptedProcess(812, 180344, "0d1c7a52-8b0f-4c53-9b1e-5d5c1c8f7e10")
    assert adopted_process(TEXT) == process
    assert str(process) == TEXT


@pytest.mark.parametrize("text", ["", "812", "0:1:" + TEXT[11:], "8:1:x", TEXT + " ", "-" + TEXT])
def test_what_is_no_process_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="as zerotools adopt fills it in"):
        adopted_process(text)
    with pytest.raises(BadRequest, match=r"script\.adopted = .*PID:START:BOOT"):
        job_from_dict(job(script={"command": ["a"], "adopted": text}), source="job")


def test_a_job_that_watches_takes_nothing_and_is_never_started_again() -> None:
    spec = job_from_dict(job(), source="job")
    assert spec.script.process == adopted_process(TEXT)
    assert job_from_dict(job_to_dict(spec), source="job") == spec
    for changes, said in (
        ({"max_restarts": 1}, "max_restarts = 1"),
        ({"ranks": 2}, "gets no GPUs or ranks from the daemon"),
        (
            {"script": {**job()["script"], "evaluates": "/out"}},
            "script.evaluates = /out: the job only watches",
        ),
        ({"device": "cuda"}, "gets no GPUs or ranks from the daemon"),
        ({"script": {**job()["script"], "launcher": "torchrun"}}, "starts none"),
    ):
        with pytest.raises(BadRequest, match=said):
            job_from_dict(job(**changes), source="job")


def test_a_job_that_starts_its_program_watches_none() -> None:
    tree = job(script={"command": ["a"], "directory": "/"})
    assert job_from_dict(tree, source="job").script.process is None
