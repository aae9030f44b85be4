"""What other users of the machine see of a job."""

from __future__ import annotations

import os
from dataclasses import fields

from tests.daemon.http.api.made_views import a_job, a_view, an_attempt
from zerotoolsd.http.api.authorize import AuthorizedRequest
from zerotoolsd.http.api.visible_fields import (
    SEEN_OF_ATTEMPT,
    SEEN_OF_JOB,
    event_for,
    hidden_fields,
    machine_for,
    peak_for,
    view_for,
)
from zerotoolsd.interface.api_types import AttemptView, Event, JobView
from zerotoolsd.users.rights import Access, Caller, Rights

STRANGER = os.geteuid() + 4711
OTHER = os.geteuid() + 4712
SECRET = "/home/me/secret"


def by(uid: int) -> AuthorizedRequest:
    return AuthorizedRequest(Caller(uid=uid), Access.MASKED, Rights())


def test_others_see_that_a_job_is_there_and_not_what_it_is() -> None:
    attempt = an_attempt(run_dir=SECRET, cause=SECRET, resumed_from=SECRET, exit_code=3)
    view = a_view(
        7,
        a_job(name="thesis", output_dir=SECRET),
        uid=OTHER,
        reason=SECRET,
        output_dir=SECRET,
        attempts=(attempt,),
        latest_checkpoint={"path": SECRET},
        progress={"loss": 1.25},
        phase={"last_line": SECRET},
        set_keys=("output_dir",),
        environment=SECRET,
    )
    seen = view_for(view, by(STRANGER))
    assert (seen.id, seen.uid, seen.state, seen.name) == (7, OTHER, view.state, "job-7")
    assert (seen.masked, seen.created, seen.world_size) == (True, view.created, view.world_size)
    (shown,) = seen.attempts
    assert (shown.number, shown.gpu_uuids, shown.started) == (1, (), attempt.started)
    assert (shown.exit_code, shown.peak_host_bytes, shown.steps_done) == (None, None, 0)
    for word in (SECRET, "thesis", "1.25", "output_dir'"):
        assert word not in str(seen.to_json()["spec"]) + str(seen.attempts) + str(seen.progress)
    assert SECRET not in str(seen.to_json())
    assert "thesis" not in str(seen.to_json())
    assert all(view_for(view, by(uid)) == view for uid in (OTHER, os.geteuid(), 0))


def test_a_field_of_which_nobody_has_thought_is_hidden() -> None:
    """A new field is not seen by others until it is listed, and has something to stand for it."""
    for kind, seen, view in (
        (JobView, SEEN_OF_JOB, a_view(1, a_job())),
        (AttemptView, SEEN_OF_ATTEMPT, an_attempt()),
    ):
        assert seen <= {each.name for each in fields(kind)}
        for name, value in hidden_fields(kind, seen).items():
            usual = getattr(view, name)
            assert not value
            assert value is None or isinstance(value, type(usual)), name


def test_others_see_that_something_happened_and_not_why() -> None:
    event = Event(
        seq=1,
        time=0,
        job_id=7,
        attempt=1,
        kind="crashed",
        from_state=None,
        to_state=None,
        why=SECRET,
        uid=OTHER,
    )
    assert event_for(event, by(STRANGER)).why is None
    assert all(event_for(event, by(uid)) == event for uid in (OTHER, os.geteuid(), 0))


def test_others_see_which_job_has_a_gpu_and_not_by_which_program() -> None:
    lease = {"gpu_uuid": "GPU-1", "job_id": 7, "attempt": 1, "held_by": SECRET, "uid": OTHER}
    tree = {"snapshot": None, "leases": [lease], "launch": {"by": "child", "trouble": SECRET}}
    seen = machine_for(tree, by(STRANGER))
    assert SECRET not in str(seen)
    assert seen["leases"] == [{**lease, "held_by": "a process that it left behind"}]
    administrator = AuthorizedRequest(Caller(uid=0), Access.ALLOWED, Rights())
    assert machine_for(tree, administrator) == tree


def test_others_see_that_jobs_may_start_warm_and_not_from_what() -> None:
    warm = {"enabled": True, "trouble": SECRET, "servers": [{"python": SECRET}]}
    tree = {"snapshot": None, "leases": [], "warm_start": warm}
    seen = machine_for(tree, by(STRANGER))
    assert seen["warm_start"] == {"enabled": True, "trouble": None, "servers": []}
    administrator = AuthorizedRequest(Caller(uid=0), Access.ALLOWED, Rights())
    assert machine_for(tree, administrator) == tree


def test_what_an_attempt_held_everybody_sees_and_not_how_its_job_is_called() -> None:
    peak = {"job_id": 3, "uid": OTHER, "name": SECRET, "host_bytes": 5}
    assert peak_for(peak, by(STRANGER)) == {**peak, "name": None}
    assert peak_for(peak, by(OTHER)) == peak
    assert peak_for({**peak, "uid": None}, by(STRANGER))["name"] is None
