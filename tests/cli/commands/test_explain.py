from __future__ import annotations

import json
from typing import Any

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from zerotools.cli.commands.explain import page

JOB = {"id": 7, "name": "tiny"}
EVENT = {
    "seq": 12,
    "time": 0.0,
    "job_id": 7,
    "attempt": 2,
    "kind": "crashed",
    "from_state": "running",
    "to_state": "waiting_retry",
    "why": "it hangs",
}
TREE: dict[str, Any] = {
    "id": 7,
    "name": "tiny",
    "state": "waiting_retry",
    "why": "it hangs; restart 1 of 3",
    "place": None,
    "holders": [],
    "retries": {
        "used": 1,
        "max": 3,
        "rule": "auto",
        "cause": "hang",
        "after": "ranks without progress",
        "cause_ends": 1,
        "cause_max": 2,
        "counts": True,
        "next_try": 1060.0,
    },
    "end": {
        "attempt": 2,
        "cause_kind": "hang",
        "cause": "it hangs",
        "rank": 1,
        "exit_code": None,
        "signal": 9,
        "steps_done": 40,
        "saved_step": None,
        "ended": 1000.0,
    },
    "resumed_from": "/out/step-30",
    "notifications": [],
    "events": [EVENT],
}


def lines_of(**changes: Any) -> dict[str, str]:
    """The facts of the page by their names."""
    lines = page(JOB, {**TREE, **changes}, now=1000.0)
    rows = (line.split(None, 1) for line in lines[1:] if line.startswith("  "))
    return {row[0]: row[1] for row in rows}


def test_a_job_that_is_tried_again() -> None:
    text = "\n".join(page(JOB, TREE, now=1000.0))
    assert text.startswith("job 7 (tiny): waiting retry\n")
    assert (
        "1 of 3 used since the last progress; after ranks without progress, at most 2 restarts "
        "follow (1 such end so far)"
    ) in text
    assert "(in 1 min 00 s)" in text
    assert "attempt 2: hang: it hangs" in text
    assert "rank 1 failed first" in text
    assert "step 40, nothing saved" in text
    assert "from /out/step-30" in text
    assert "#12 " in text
    assert "crashed attempt 2 running -> waiting retry: it hangs" in text


def test_the_first_event_has_no_state_before_it() -> None:
    first = {**EVENT, "kind": "gave_up", "from_state": None, "attempt": None, "why": None}
    assert page(JOB, {**TREE, "events": [first]}, now=1000.0)[-1].endswith("gave up waiting retry")


def test_long_lines_are_folded_between_words() -> None:
    crash = {**EVENT, "why": "rank 0 exited with 1: ValueError: the tokenizer has 32000 tokens"}
    lines = page(JOB, {**TREE, "events": [crash]}, 1000.0, columns=60)
    assert max(map(len, lines)) <= 60
    assert lines[-1] == "      tokenizer has 32000 tokens"


def test_a_cause_that_costs_nothing_and_one_that_nothing_follows() -> None:
    free = {**TREE["retries"], "counts": False, "after": "a restart of the machine"}
    said = lines_of(retries={**free, "cause_max": None})["restarts"]
    assert said.endswith("; a restart after a restart of the machine is not counted")
    none = lines_of(retries={**TREE["retries"], "cause_max": 0})["restarts"]
    assert "; after ranks without progress, no restart follows (1 such end so far)" in none


def test_a_job_that_waits(zerotools: Command, service: FakeService) -> None:
    service.add(state="queued", reason="needs 2 GPUs: 0 of 2 free")
    done = zerotools("explain", "1")
    assert done.status == 0
    assert "needs 2 GPUs: 0 of 2 free" in done.out
    assert "1 of 2 waiting jobs for GPUs; needs 2" in done.out
    assert "job 3, attempt 1, since 1970" in done.out
    assert "at the latest (in 0 s)" in done.out
    assert json.loads(zerotools("explain", "1", "--json").out)["place"]["of"] == 2


def test_holders_without_a_limit_and_what_outlived_a_job() -> None:
    holder = {"what": "GPU", "job_id": 3, "attempt": 1, "since": 1.0, "until": None}
    assert "its end is not known" in lines_of(holders=[{**holder, "process": None}])["GPU"]
    said = lines_of(holders=[{**holder, "process": "pid 4 (cat)"}])["GPU"]
    assert said == "job 3, attempt 1: pid 4 (cat) still runs after the attempt ended"


def test_gpus_that_one_job_has_are_one_line_with_the_name_of_its_user() -> None:
    one = {"job_id": 3, "attempt": 1, "since": 1.0, "until": None, "process": None, "user": "anna"}
    other = {**one, "job_id": 4, "user": "bob"}
    held = [{**one, "what": f"GPU {n}"} for n in (0, 1, 3)] + [{**other, "what": "GPU 2"}]
    lines = "\n".join(page(JOB, {**TREE, "holders": held}, now=1000.0))
    assert "GPUs 0-1, 3  job 3 (anna), attempt 1, since" in lines
    assert "GPU 2        job 4 (bob), attempt 1, since" in lines


def test_who_was_not_told_yet() -> None:
    notice = {"notice": "failed", "channel": "webhook", "tries": 0, "trouble": None}
    waiting = {**notice, "tries": 2, "next_try": 1010.0, "trouble": "status 500"}
    place = {**waiting, "channel": "place", "place": "slack", "trouble": "status 404"}
    notices = [{**notice, "next_try": 1.0}, waiting, place]
    lines = page(JOB, {**TREE, "notifications": notices}, 1000.0)
    told = [line.split(None, 3)[3] for line in lines if line.startswith("  not sent yet")]
    assert told == [
        "failed by webhook: being sent",
        "failed by webhook: 2 tries failed, the next is in 10 s: status 500",
        "failed by place slack: 2 tries failed, the next is in 10 s: status 404",
    ]


def test_nobody_to_explain(zerotools: Command) -> None:
    done = zerotools("explain", "3")
    assert (done.status, done.err) == (2, "error: job 3 does not exist\n")


def test_who_made_room_for_whom_and_what_that_cost() -> None:
    room = {"job_id": 7, "attempt": 2, "purpose": "preempt", "for_job": 9, "asked": 100.0}
    room |= {"ended": 103.25, "saved_step": 412, "steps_lost": 0, "first_step": 108.5}
    text = "\n".join(page(JOB, {**TREE, "room": [room]}, now=1000.0))
    assert "for job 9: step 412 saved, 0 steps lost; ended after 3.2 s, and job 9 made" in text
    others = {**room, "job_id": 3, "for_job": 7, "saved_step": None, "steps_lost": None}
    text = "\n".join(page(JOB, {**TREE, "room": [others]}, now=1000.0))
    assert "of job 3, attempt 2, " in text
    assert "; ended after 3.2 s, and job 7 made its first step after 8.5 s" in text
    saves = {**room, "purpose": "pause", "for_job": None, "ended": None, "first_step": None}
    assert "for a pause: the attempt is saving" in "\n".join(
        page(JOB, {**TREE, "room": [saves]}, now=1000.0)
    )
