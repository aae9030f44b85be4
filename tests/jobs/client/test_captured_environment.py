"""What a job takes along of the environment in which it is submitted."""

from __future__ import annotations

import pytest

from tests.jobs.jobfile.test_parse import parsed
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.captured_environment import (
    capture_environment,
    named_variables,
    with_environment,
)

HERE = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "HF_HOME": "/hf",
    "https_proxy": "http://p:1",
    "CONDA_PREFIX": "/conda",
    "HF_TOKEN": "hidden",
    "WANDB_API_KEY": "hidden",
    "AWS_SECRET_ACCESS_KEY": "hidden",
    "AWS_REGION": "eu",
    "CUDA_VISIBLE_DEVICES": "3",
    "RANK": "7",
    "NCCL_DEBUG": "\udce9",
    "SSH_AUTH_SOCK": "/tmp/agent",
}


def test_what_programs_need_is_taken_along_and_secrets_are_not() -> None:
    taken, secret, not_text = capture_environment(HERE)
    assert set(taken) == {"PATH", "LC_ALL", "HF_HOME", "https_proxy", "CONDA_PREFIX"}
    assert secret == ("HF_TOKEN", "WANDB_API_KEY")
    assert not_text == ("NCCL_DEBUG",)


def test_what_is_named_comes_too() -> None:
    assert named_variables(["HF_TOKEN", "A=b=c", "E="], HERE) == {
        "HF_TOKEN": "hidden",
        "A": "b=c",
        "E": "",
    }


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("NONE", "--env NONE: is not set here"),
        ("RANK=1", "--env RANK: is set by the daemon"),
        ("=x", "must be NAME or NAME=VALUE"),
        ("NCCL_DEBUG", "its value is not text"),
        (f"LONG={'x' * 131_067}", r"--env LONG: is too long: .* have 131,072 bytes"),
    ],
)
def test_what_cannot_be_taken_along_is_refused(option: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        named_variables([option], HERE)


def test_a_job_that_says_what_it_takes_along_keeps_it() -> None:
    job = with_environment(parsed(env={"A": "file"}), {"PATH": "/bin"}, {"B": "option"})
    assert job.captured_env == {"PATH": "/bin"}
    assert job.env == {"A": "file", "B": "option"}
    own = with_environment(parsed(captured_env={"X": "1"}), {"PATH": "/bin"}, {})
    assert own.captured_env == {"X": "1"}
