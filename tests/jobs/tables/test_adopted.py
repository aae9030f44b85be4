from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict
from zerotools.jobs.tables.adopted import AdoptedProcess, adopted_process

TEXT = "812:180344:0d1c7a52-8b0f-4c53-9b1e-5d5c1c8f7e10"


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
