"""A model that cannot train is refused before it is queued, in the words that a rank would use."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import forked
from harness.launching import TINY_LLAMA
from harness.warm_interpreter import interpreter
from tests.daemon.trainer.model.test_match_pretrained import headless, other_names, saved
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.interface.api_types import Unavailable
from zerotoolsd.service.admission.run_rank_checks import run_rank_checks

pytestmark = pytest.mark.torch

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"model_type": "lama"}, "transformers does not know model_type 'lama'"),
    "vocabulary": ({"vocab_size": 100}, "the data needs 256 token ids, but the model's vocab_size"),
    "heads": ({"num_attention_heads": 5}, "hidden size"),
    "misspelt": ({"rms_norm_epz": 1e-5}, "did you mean 'rms_norm_eps'?"),
}

SMALL = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
OTHER_KINDS: dict[str, dict[str, Any]] = {
    "bidirectional": {**SMALL, "model_type": "bert", "num_attention_heads": 2},
    "no loss": {**TINY_LLAMA, "output_router_logits": True},
    "unbalanced": {**SMALL, "model_type": "mixtral", "num_local_experts": 2},
}


def job(**config: Any) -> dict[str, Any]:
    return {
        "device": "cpu",
        "model": {"config": {**TINY_LLAMA, **config}},
        "data": {"text": ["/a.txt"], "tokenizer": "bytes", "sequence_length": 32},
        "train": {"steps": 1, "batch_size": 1},
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the child says of each job, asked in one process, which imports torch once."""
    root = tmp_path_factory.mktemp("models")
    jobs = {name: job(**changes) for name, (changes, _) in REFUSED.items()}
    for name, change in (("names", other_names), ("headless", headless)):
        path = str(saved(root / name, TINY_LLAMA, change))
        jobs[name] = {**job(), "model": {"path": path}}
    jobs["resumed"] = {**jobs["names"], "resume_from": "/somewhere"}
    for name, config in OTHER_KINDS.items():
        jobs[name] = {**job(), "model": {"config": config}}
    jobs["good"] = job()
    jobs["foreign"] = job(colour="blue")
    program = (
        "import json, sys\n"
        "from zerotools.core.errors import ZerotoolsError\n"
        "from zerotools.jobs.jobfile.parse import job_from_dict\n"
        "from zerotoolsd.trainer.preflight_model_and_data import check_job\n"
        "for name, tree in json.load(open(sys.argv[1])).items():\n"
        "    try:\n"
        "        said = {'notes': check_job(job_from_dict(tree, source='job')).notes}\n"
        "    except ZerotoolsError as error:\n"
        "        said = {'problem': str(error)}\n"
        "    print('said', json.dumps([name, said]))\n"
    )
    (root / "program.py").write_text(program)
    (root / "jobs.json").write_text(json.dumps(jobs))
    arguments = ["-P", str(root / "program.py"), str(root / "jobs.json")]
    printed = forked.output(forked.TORCH, arguments, env=os.environ, timeout=60).splitlines()
    lines = [line.removeprefix("said ") for line in printed if line.startswith("said ")]
    return dict(json.loads(line) for line in lines)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_rank_would_refuse_is_refused(name: str, answers: dict[str, Any]) -> None:
    assert REFUSED[name][1] in answers[name]["problem"]


def test_what_a_model_would_learn_wrongly_is_said(answers: dict[str, Any]) -> None:
    assert "a bert model with this config is bidirectional" in answers["bidirectional"]["problem"]
    assert "a llama model has no such loss" in answers["no loss"]["problem"]
    [note] = answers["unbalanced"]["notes"]
    assert "output_router_logits = false" in note


def test_the_whole_reason_is_told(answers: dict[str, Any]) -> None:
    """transformers' first line is `Class validation error for validator ...:`, the reason below."""
    assert "32" in answers["heads"]["problem"]
    assert "5" in answers["heads"]["problem"]


def test_a_good_model_is_taken_and_foreign_keys_are_named(answers: dict[str, Any]) -> None:
    assert answers["good"] == {"notes": []}
    (note,) = answers["foreign"]["notes"]
    assert note.startswith("model.config.colour: a llama config has no such key")


def test_the_names_of_a_directory_are_compared(answers: dict[str, Any]) -> None:
    assert "and has blocks.0.input_layernorm.weight" in answers["names"]["problem"]
    (note,) = answers["headless"]["notes"]
    assert "lacks lm_head.weight, which get initial values" in note
    assert answers["resumed"] == {"notes": []}  # its weights are in the checkpoint


def test_the_daemon_asks_the_job_s_interpreter(tmp_path: Path) -> None:
    spec = job_from_dict(job(model_type="lama"), source="job")
    with (
        interpreter(tmp_path / "torch", forked.TORCH) as python,
        pytest.raises(BadRequest, match="transformers does not know model_type 'lama'"),
    ):
        asyncio.run(run_rank_checks(spec, str(python), {"PATH": os.environ["PATH"]}))
    mute = tmp_path / "python"
    mute.write_text("#!/bin/sh\necho nothing\n")
    mute.chmod(0o700)
    with pytest.raises(BadRequest, match=r"could not check the model and the data, and gave"):
        asyncio.run(run_rank_checks(spec, str(mute), {}))


def test_a_directory_that_takes_no_file_is_named(tmp_path: Path) -> None:
    spec, missing = job_from_dict(job(), source="job"), tmp_path / "missing"
    with pytest.raises(Unavailable, match=rf"a file in {missing} cannot be written: No such file"):
        asyncio.run(run_rank_checks(spec, sys.executable, {}, directory=missing))


def test_a_disk_that_fills_up_in_the_middle_is_said(tmp_path: Path) -> None:
    spec = job_from_dict(job(), source="job")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(Unavailable, match=rf"a file in {tmp_path} cannot be written: File too"):
            asyncio.run(run_rank_checks(spec, sys.executable, {}, directory=tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
