"""What other users of the machine see of a job."""

from __future__ import annotations

import os

from tests.daemon.api.fakes import a_job, a_view, an_attempt
from zerotoolsd.api.readers import event_for, view_for
from zerotoolsd.service import Event

STRANGER = os.geteuid() + 4711
OTHER = os.geteuid() + 4712


def test_others_see_that_a_job_is_there_and_not_what_it_is() -> None:
    secret = "/home/me/secret"
    view = a_view(
        7,
        a_job(name="thesis", output_dir=secret),
        uid=OTHER,
        reason=secret,
        output_dir=secret,
        attempts=(an_attempt(run_dir=secret, cause=secret, resumed_from=secret),),
    )
    seen = view_for(view, STRANGER)
    assert (seen.id, seen.uid, seen.state, seen.name) == (7, OTHER, view.state, "job-7")
    assert secret not in str(seen.to_json())
    assert "thesis" not in str(seen.to_json())
    assert all(view_for(view, uid) == view for uid in (OTHER, os.geteuid(), 0))


def test_others_see_that_something_happened_and_not_why() -> None:
    event = Event(
        seq=1, time=0, job_id=7, attempt=1, kind="crashed", from_state=None, to_state=None, why="x"
    )
    assert event_for(event, STRANGER).why is None
    assert event_for(event, os.geteuid()) == event
