"""Arguments and environments that no process can begin with are refused at submit."""

from __future__ import annotations

from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.attempts.job_environment import job_environment
from zerotoolsd.service.admission.argv_limit import too_large


def said(*words: str, **env: str) -> list[str]:
    script = {"command": ["x", *words], "directory": "/"}
    job = {"engine": "script", "device": "cpu", "script": script, "env": env}
    spec = job_from_dict(job, source="-")
    return list(too_large(spec, job_environment(spec)))


def test_many_words_are_too_much_together_though_none_is_too_long() -> None:
    assert said(*["word"] * 1000) == []
    (why,) = said(*["x" * 60_000] * 110)
    assert "take 6,6" in why
    assert "and the kernel takes" in why


def test_a_path_is_added_to_pythonpath_at_the_start() -> None:
    assert said(PYTHONPATH="/x" * 1000) == []
    (why,) = said(PYTHONPATH="/x" * 65_000)
    assert why.startswith("PYTHONPATH has 130,011 bytes, and with the path that the daemon adds")
