"""Following a job: each pause of the follower is a step of the job."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, an_attempt
from zerotools.cli.job_actions.follow_progress import Follower
from zerotools.cli.job_actions.wait_for_jobs import Poller
from zerotools.cli.job_views.describe_job import loss, reason_text
from zerotools.cli.job_views.progress_line import ProgressLine, event_text, step_text
from zerotools.core.errors import DaemonUnreachable, JobFailed
from zerotools.jobs.client.daemon_client import DaemonClient


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def report(service: FakeService, *records: dict[str, Any], attempt: int = 1) -> None:
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    service.write(1, "progress.jsonl", data, attempt=attempt)


def follow(client: DaemonClient, script: Iterator[None], stream: io.StringIO | None = None) -> str:
    out = io.StringIO() if stream is None else stream
    poller = Poller(pause=lambda _: next(script))
    Follower(client, client.job(1), out, poller).run()
    return out.getvalue()


def test_a_job_from_the_queue_over_a_crash_to_its_end(
    service: FakeService, client: DaemonClient
) -> None:
    service.add()
    crashed = an_attempt(1, state="ended", ended=1.0, peak_host_bytes=None)
    second = an_attempt(2, peak_host_bytes=None)

    def script() -> Iterator[None]:
        service.change(1, state="running", reason=None, attempts=(an_attempt(1),))
        report(service, STEP | {"step": 1})
        yield
        report(service, STEP | {"step": 9}, {"event": "error", "rank": 1, "message": "oh \x1b"})
        service.change(1, state="waiting_retry", reason="starts again in 10 s", attempts=(crashed,))
        yield
        service.change(1, state="running", reason=None, attempts=(crashed, second))
        resumed = {"event": "resumed", "step": 5, "path": "/o/step-5", "rng": "reseeded"}
        report(service, resumed, STEP | {"step": 40}, attempt=2)
        yield
        saved = {"event": "checkpoint", "step": 40, "path": "/o/s", "bytes": 2048, "seconds": 0.25}
        report(service, saved, attempt=2)
        service.change(1, state="succeeded")
        yield

    assert follow(client, script()).splitlines() == [
        "job 1 (tiny) queued: needs 1 GPU, and GPU 0 is leased to job 1",
        "job 1 (tiny) running",
        "step  1/40    2%  loss 2.5000  grad 1.25  lr 3.0e-04  15,300 tokens/s"
        "  host peak 6.0 GiB  20 s left",
        "job 1 (tiny) waiting retry: starts again in 10 s",
        "step  9/40   22%  loss 2.5000  grad 1.25  lr 3.0e-04  15,300 tokens/s"
        "  host 3.0 GiB (rank 0)  16 s left",
        "rank 1: oh \\x1b",
        "job 1 (tiny) running, attempt 2",
        "resumes from step 5: /o/step-5; random number state seeded again",
        "step 40/40  100%  loss 2.5000  grad 1.25  lr 3.0e-04  15,300 tokens/s"
        "  host 3.0 GiB (rank 0)",
        "saved step 40: /o/s (2.0 KiB in 0.2 s)",
    ]


def test_a_job_that_saves_and_is_held_has_the_words_of_users(
    service: FakeService, client: DaemonClient
) -> None:
    service.add(state="running", reason=None, attempts=(an_attempt(1),))

    def script() -> Iterator[None]:
        yield
        service.change(1, state="pausing", reason="held by uid 1000")
        yield
        service.change(1, state="paused", reason="held by uid 1000; saved at step 4 and stopped")
        yield

    stream = io.StringIO()
    with pytest.raises(
        JobFailed, match=r"^job 1 \(tiny\) held[^_]*: held by uid 1000; saved at st"
    ):
        follow(client, script(), stream)
    assert stream.getvalue().splitlines()[1] == "job 1 (tiny) holding: held by uid 1000"


def test_what_a_job_prepares_is_told_and_its_end_is_not(
    service: FakeService, client: DaemonClient
) -> None:
    service.add(state="running", reason=None, attempts=(an_attempt(1),))

    def script() -> Iterator[None]:
        for reason in (None, "loading the weights", None, None):
            service.change(1, reason=reason)
            yield
        service.change(1, state="succeeded")
        yield

    assert follow(client, script()).splitlines() == [
        "job 1 (tiny) running",
        "job 1 (tiny) running: loading the weights",
    ]


def test_a_cancelled_job_did_not_do_what_was_asked(
    service: FakeService, client: DaemonClient
) -> None:
    service.add(state="cancelled", reason="cancelled by uid 0")
    with pytest.raises(JobFailed, match=r"job 1 .* cancelled: cancelled by uid 0; its log"):
        follow(client, iter(()))


def test_a_terminal_gets_one_line_that_is_rewritten() -> None:
    out = Terminal()
    line = ProgressLine(out)
    line.show(STEP | {"step": 1})
    line.show(STEP | {"step": 2})
    line.print_line("saved")
    line.show(STEP | {"step": 3})
    line.finish()
    lines = out.getvalue().split("\r\x1b[K")
    assert [text[:9] for text in lines] == ["step  1/4", "step  2/4", "saved\nste"]
    assert out.getvalue().endswith("\n")


def test_elsewhere_a_line_comes_now_and_then_and_the_last_one_always() -> None:
    out, now = io.StringIO(), [0.0]
    line = ProgressLine(out, every_seconds=5, clock=lambda: now[0])
    for step in range(1, 13):
        now[0] += 1
        line.show(STEP | {"step": step})
    line.finish()
    assert [text[5:7] for text in out.getvalue().splitlines()] == [" 1", " 6", "11", "12"]


@pytest.mark.parametrize("odd", ["x", None, True, float("nan"), float("inf"), [1], -1, 10**400])
def test_records_of_any_shape_are_survived(odd: object) -> None:
    for name in ("step", "steps", "loss", "rss_bytes", "step_seconds", "tokens_per_second"):
        assert step_text(STEP | {name: odd})
    for name in ("step", "path", "bytes", "seconds"):
        assert event_text({"event": "checkpoint", name: odd})


def test_a_loss_that_is_no_number_is_seen() -> None:
    assert "loss nan" in step_text(STEP | {"loss": None})
    assert "loss" not in step_text({name: STEP[name] for name in STEP if name != "loss"})
    assert (loss({"loss": None}), loss({}), loss(None)) == ("nan", "-", "-")


def test_a_daemon_that_restarts_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([DaemonUnreachable("gone"), DaemonUnreachable("gone"), 7])
    now = [0.0]

    def question() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pause(seconds: float) -> None:
        now[0] += 20

    assert Poller(pause=pause, clock=lambda: now[0]).call(question) == 7
    assert capsys.readouterr().err == "warning: gone; trying again for a minute\n"
    answers = iter([DaemonUnreachable("gone")] * 9)
    with pytest.raises(DaemonUnreachable):
        Poller(pause=pause, clock=lambda: now[0]).call(question)


def test_an_evaluation_is_one_line() -> None:
    record = {"event": "eval", "step": 40, "loss": 1.5, "perplexity": 4.4816890703}
    assert event_text(record) == "evaluated step 40: loss 1.5000  perplexity 4.4817"
    assert event_text({**record, "perplexity": None}) == "evaluated step 40: loss 1.5000"
    assert event_text({**record, "loss": None}) == "evaluated step 40: loss nan  perplexity 4.4817"
    scores = {"rouge1": 51.234, "rouge2": 20.0, "rougeL": 48.1, "bleu": 17.255, "predictions": None}
    said = "  ROUGE-1 51.23  ROUGE-2 20.00  ROUGE-L 48.10  BLEU 17.25"
    assert event_text({**record, **scores}).endswith(f"perplexity 4.4817{said}")


def test_what_a_program_of_the_user_s_does_not_tell_is_left_out() -> None:
    assert step_text({"step": 5, "loss": 2}).startswith("step 5  loss 2.0000")
    assert step_text({"step": 5, "last_loss": 2}).startswith("step 5  loss 2.0000")
    assert event_text({"event": "eval", "step": 5, "f1": 0.5}) == "evaluated step 5: f1 0.5"
    told = {"event": "checkpoint", "step": 5, "path": "/o/5.pt"}
    assert event_text(told) == "saved step 5: /o/5.pt"
    assert event_text(told | {"found": True}) == "found a checkpoint at step 5: /o/5.pt"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2, "2.0000"),
        (3.2e12, "3.200e+12"),
        (-(10**400), "-1.798e+308"),
        ("low", "-"),
        (None, "nan"),
    ],
)
def test_a_loss_of_any_kind_takes_a_few_columns(value: Any, shown: str) -> None:
    assert loss({"loss": value}) == shown


def test_a_job_at_its_time_limit_is_gone_on_with_by_one_command(
    service: FakeService, client: DaemonClient
) -> None:
    service.add(state="stopped", reason="its time limit of 1 h is over", attempts=(an_attempt(1),))
    with pytest.raises(
        JobFailed, match=r"over; continue from its newest checkpoint: zerotools retry 1$"
    ):
        follow(client, iter(()))


def test_a_checkpoint_that_could_not_be_saved_is_told_of() -> None:
    record = {"event": "save_failed", "step": 4, "why": "No space left on device"}
    assert event_text(record) == "could not save step 4: No space left on device"


def phase(**changes: Any) -> dict[str, Any]:
    usual = {
        "doing": "loading the weights",
        "since": 280.0,
        "last_progress": 700.0,
        "quiet": True,
        "last_line": "reading \x1b shard 3",
    }
    return usual | changes


def test_a_phase_in_words(service: FakeService) -> None:
    view = service.add(state="running", reason="loading the weights", phase=phase()).to_json()
    assert reason_text(view, now=1000.0) == (
        "loading the weights for 12 min 00 s, no progress for 5 min 00 s; the last log line: "
        "reading \x1b shard 3"
    )
    moving = phase(quiet=False)
    assert reason_text(view | {"phase": moving}, now=300.0) == "loading the weights for 20 s"
    compiles = moving | {"doing": "compiling cpu_adam", "last_line": "[2/3] c++ cpu_adam.cpp"}
    assert reason_text(view | {"phase": compiles, "reason": "compiling cpu_adam"}, now=350.0) == (
        "compiling cpu_adam for 1 min 10 s; the last log line: [2/3] c++ cpu_adam.cpp"
    )
    trains = phase(doing=None, since=None)
    assert reason_text(view | {"phase": trains, "reason": None}, now=1000.0) == (
        "no progress for 5 min 00 s; the last log line: reading \x1b shard 3"
    )
    assert reason_text(
        view | {"phase": trains, "reason": "cancelled by uid 0"}, now=1000.0
    ).startswith("cancelled by uid 0, no progress for 5 min 00 s")
    old = {key: value for key, value in view.items() if key != "phase"}
    assert reason_text(old) == "loading the weights", "an older daemon says no more"


def test_a_phase_moves_on_a_terminal_and_stays_rare_elsewhere(
    service: FakeService, client: DaemonClient
) -> None:
    service.add(state="running", reason="loading the weights", phase=phase(), attempts=())
    terminal, elsewhere = Terminal(), io.StringIO()

    def script() -> Iterator[None]:
        for number in range(3):
            service.change(1, phase=phase(last_line=f"line {number}"))
            yield
        service.change(1, state="succeeded", reason=None, phase=None)
        yield

    steps = script()
    poller = Poller(pause=lambda _: next(steps))
    Follower(client, client.job(1), terminal, poller).run()
    assert terminal.getvalue().count("no progress for") == 4
    assert terminal.getvalue().count("\r\x1b[K") >= 3
    service.change(1, state="running", reason="loading the weights", phase=phase())
    steps = script()
    Follower(client, client.job(1), elsewhere, Poller(pause=lambda _: next(steps))).run()
    assert elsewhere.getvalue() == "job 1 (tiny) running: loading the weights\n"


def test_a_phase_is_said_again_after_half_a_minute() -> None:
    now, out = 0.0, io.StringIO()
    line = ProgressLine(out, clock=lambda: now)
    for now in (0.0, 20.0, 30.0, 50.0, 60.0):
        line.waits(f"at {now:g}")
    assert out.getvalue() == "at 30\nat 60\n"


STOPPED = {
    "name": "step",
    "last_step": 959.0,
    "step_seconds": 0.4,
    "late": False,
    "step_is_old": True,
    "waits_for": {"rank": 1, "at": "step 812", "since": 959.0, "state": "T"},
    "deadline_seconds": 600.0,
    "stalled": False,
    "stall": None,
}


def test_a_job_that_takes_no_step_says_so_and_for_whom_it_waits(service: FakeService) -> None:
    still = phase(doing=None, since=None, quiet=False) | STOPPED
    view = service.add(state="running", reason=None, world_size=2, phase=still).to_json()

    def told(now: float = 1000.0, **changes: Any) -> str:
        return reason_text(view | {"phase": still | changes}, now=now)

    assert told() == (
        "no step for 41 s (steps take 0.4 s): rank 1 has been in step 812 for 41 s (stopped by a "
        "signal), and the others wait for it"
    )
    assert told(waits_for=None) == "no step for 41 s (steps take 0.4 s)"
    assert told(965.0) == "no step for 6 s (steps take 0.4 s)", "it may come yet"
    assert told(name="saving", waits_for=None, step_seconds=None) == "saving, no step for 41 s"
    assert told(step_is_old=False, waits_for=None) == ""
    complete = {"waits_for": {**STOPPED["waits_for"], "state": "S"}, "name": "complete"}
    assert told(**complete) == "reported that its work is complete, but has not ended for 41 s"
    alone = view | {"world_size": 1, "phase": still | {"step_is_old": False}}
    assert (
        reason_text(alone, now=1000.0) == "it has been in step 812 for 41 s (stopped by a signal)"
    )


def test_a_stall_is_told_of_with_what_follows() -> None:
    record = {
        "event": "stall",
        "why": "rank 1 has been in step 812 for 10 min",
        "ends": True,
    }
    told = "stalled: rank 1 has been in step 812 for 10 min; "
    assert (
        event_text(record) == f"{told}its ranks are killed; the stacks of the ranks are in the log"
    )
    assert event_text(record | {"ends": False}).startswith(f"{told}the job continues")
