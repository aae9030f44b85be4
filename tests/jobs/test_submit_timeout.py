"""A client waits for as long as the daemon may look at a job, whatever kind its data is of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.launching import job
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.data import KINDS, DataSpec
from zerotools.jobs.submit_timeout import REHEARSAL_SECONDS, answer_seconds, reads_data


@pytest.mark.parametrize(
    ("kind", "name", "asks"),
    [
        *((kind, "a.jsonl", kind in ("examples", "preferences")) for kind in KINDS),
        ("text", "*.parquet", True),
        ("text", "saved-dataset", True),
    ],
)
def test_what_the_interpreter_reads_is_waited_for(kind: str, name: str, asks: bool) -> None:
    whole = job_from_dict(job(Path("/t.txt")), source="job")
    spec = replace(whole, data=DataSpec(**{kind: (name,)}))
    assert reads_data(spec) == asks
    assert (answer_seconds(spec) >= REHEARSAL_SECONDS) == asks
    assert answer_seconds(replace(spec, resume_from="/x")) >= REHEARSAL_SECONDS
    assert answer_seconds(spec, model=True) >= REHEARSAL_SECONDS
