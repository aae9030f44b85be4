"""What the processes of a job begin with."""

from __future__ import annotations

import pytest

from tests.jobs.jobfile.test_parse import parsed
from zerotoolsd.attempts.job_environment import (
    job_environment,
    least_environment,
    secrets_of,
    unshown_values,
)


def test_nothing_of_the_daemon_reaches_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "hidden")
    monkeypatch.setenv("HTTP_PROXY", "http://daemon")
    assert set(job_environment(parsed())) == {"PATH", "HOME", "LANG"}
    taken = parsed(captured_env={"PATH": "/mine", "HF_HOME": "/hf"}, env={"HF_HOME": "/job"})
    assert job_environment(taken) == {**least_environment(), "PATH": "/mine", "HF_HOME": "/job"}


def test_a_daemon_without_an_environment_gives_its_jobs_a_usual_one() -> None:
    least = least_environment({})
    assert least["PATH"].endswith(":/usr/bin:/bin")
    assert least["LANG"] == "C.UTF-8"


def test_the_secrets_of_a_job_are_known() -> None:
    assert secrets_of(parsed(env={"A_TOKEN": "hidden", "COLOUR": "blue"})) == ["hidden"]
    assert secrets_of(None) == []


def test_reasons_show_no_value_of_env_that_is_longer_than_a_word() -> None:
    spec = parsed(env={"A_TOKEN": "word", "COLOUR": "bluebananas77", "DEBUG": "INFO"})
    assert unshown_values(spec) == ["word", "bluebananas77"]
    assert unshown_values(None) == []
