from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, a_job, a_view, an_attempt
from zerotools.cli.commands.show import page, suspects
from zerotools.jobs.client.daemon_address import RemoteMachine, forget_forwarding, record_forwarding
from zerotools.jobs.client.daemon_client import DaemonClient


def test_show_has_attempts_peaks_and_reasons(zerotools: Command, service: FakeService) -> None:
    first = an_attempt(1, state="ended", ended=1_700_000_180.0, signal=9, cause="out of memory")
    second = an_attempt(2, peak_gpu_bytes=61 << 30)
    service.add(
        state="running",
        reason=None,
        attempts=(first, second),
        progress=STEP | {"grad_norm": 0.8123, "loss_scale": 65536.0, "skipped_steps": 2},
        latest_checkpoint={"step": 10, "path": "/out/step-00000010"},
    )
    done = zerotools("show", "1")
    assert done.status == 0
    lines = done.out.splitlines()
    assert lines[0] == "job 1 (tiny): running"
    assert "  progress    step 12/40, loss 2.5000" in lines
    last = "gradient norm 0.812, learning rate 3.0e-04, loss scale 65536, 2 steps skipped"
    assert f"  last step   {last}" in lines
    assert any(line.startswith("  speed       ") and "tokens/s" in line for line in lines)
    assert any(line.startswith("  left        ") for line in lines)
    assert "  checkpoint  /out/step-00000010" in lines
    assert any("2 min 00 s" in line and "signal 9" in line for line in lines)
    assert any("61.0 GiB" in line and "6.0 GiB" in line for line in lines)
    assert ["env.TOKEN", '"***"'] in [line.split() for line in lines]
    assert "hunter2" not in done.out
    assert json.loads(zerotools("show", "1", "--json").out)["jobs"][0]["id"] == 1


def test_show_says_where_ranks_run_and_why_not(service: FakeService, client: DaemonClient) -> None:
    service.add(state="running", attempts=(an_attempt(),), world_size=9)
    job = client.job(1)
    assert not any("NUMA" in line for line in page(job, 80))
    left = {"ranks": "0-3", "cpus": "0-15,32-47", "memory_nodes": [0], "why": None}
    denied = "its memory node cannot be preferred: Operation not permitted"
    right = {"ranks": "4-6", "cpus": "16-31", "memory_nodes": [], "why": denied}
    wide = {"ranks": "7", "cpus": "0-63", "memory_nodes": [2, 3], "why": None}
    far = {"ranks": "8", "cpus": "", "memory_nodes": [], "why": "the driver does not report\x1b[2J"}
    job["attempt"]["binding"] = [left, right, wide, far]
    lines = [line.split(None, 1)[1] for line in page(job, 200) if "NUMA" in line or "rank" in line]
    assert "ranks 0-3: memory node 0, processors 0-15,32-47" in lines
    assert f"ranks 4-6: processors 16-31, {denied}" in lines
    assert "rank 7: memory nodes 2, 3, processors 0-63" in lines
    assert any(line.startswith("rank 8: not bound: the driver does not report") for line in lines)
    assert not any("\x1b" in line for line in lines)
    job["attempt"]["binding"] = [{**left, "ranks": "0"}]
    job["spec"]["script"] = {"launcher": "torchrun", "command": ["x"]}
    whole = "torchrun and its ranks: memory node 0, processors 0-15,32-47"
    assert any(line.endswith(whole) for line in page(job, 200))
    alone = {**job, "world_size": 1, "spec": {**job["spec"], "script": {"launcher": "plain"}}}
    assert any(line.split()[1:3] == ["memory", "node"] for line in page(alone, 200))


def test_show_says_where_predictions_are(service: FakeService, client: DaemonClient) -> None:
    service.add(state="running", started=1_700_000_000.0)
    job = client.job(1)
    assert not any("predictions" in line for line in page(job, 80))
    job["spec"]["eval"] = {"predict_with_generate": True}
    assert f"  predictions  {job['output_dir']}/predictions" in page(job, 80)
    assert not any("predictions  " in line for line in page({**job, "started": None}, 80))


def test_show_of_nothing(zerotools: Command) -> None:
    done = zerotools("show", "3")
    assert (done.status, done.err) == (2, "error: job 3 does not exist\n")


@pytest.mark.parametrize("word", ["abc", "1.5", "-1"])
def test_show_of_what_is_not_a_job(zerotools: Command, word: str) -> None:
    done = zerotools("show", "--", word)
    hint = "give a number or a name that `zerotools queue --all` lists"
    assert (done.status, done.err) == (
        2,
        f"error: no job has the name {word!r}\nhint: {hint}\n",
    )


def test_what_was_set_is_shown_and_the_defaults_where_asked_for(
    zerotools: Command, service: FakeService
) -> None:
    service.add()
    shown = zerotools("show", "1").out
    assert "train.steps" in shown
    assert "train.batch_size" in shown
    assert "train.betas" not in shown
    assert "train.betas" in zerotools("show", "1", "--spec").out
    service.change(1, set_keys=("train.betas", "env.TOKEN"))
    shown = zerotools("show", "1").out
    assert ("train.betas" in shown, "env.TOKEN" in shown, "train.steps" in shown) == (
        *(True, True, False),
    )


def test_at_80_columns_the_paths_of_a_job_file_stay_whole(
    service: FakeService, client: DaemonClient
) -> None:
    service.add()
    paths = ("/scratch/users/anna/runs/" + "long-name-" * 4 + "x", "/opt/venv/bin/python3")
    for name in (None, "script"):
        job = dict(client.job(1))
        script = {"command": [*reversed(paths), "--steps", "4000"], "directory": paths[0]}
        job |= {
            "spec": {**job["spec"], "script": script},
            "set_keys": ["script.command", "script.directory"],
        }
        lines = page(job, 80, whole_spec=name is None)
        assert max(map(len, lines)) <= 80
        assert sum(path in line for line in lines for path in paths) == 3
        assert any(line.startswith("  script.command ") for line in lines)


def test_at_80_columns_why_attempts_ended_stands_whole_below_them(
    service: FakeService, client: DaemonClient
) -> None:
    cause = "rank 1 exited with 1: " + "a sentence of some length, " * 5
    service.add(
        state="failed",
        attempts=(an_attempt(1, state="ended", ended=1_700_000_180.0, signal=9, cause=cause),),
        latest_checkpoint={"step": 10, "path": "/o/step-10"},
    )
    lines = page(client.job(1), 80)
    attempts = lines[lines.index("") : lines.index("job file (its defaults: --spec)")]
    assert max(map(len, attempts)) <= 80
    assert cause.split()[-1] in "\n".join(lines)
    assert "  go on       zerotools retry 1" in lines


def test_the_kind_of_a_cause_stands_once(zerotools: Command, service: FakeService) -> None:
    ends = {"lost": "lost: its supervisor was killed", "reboot": "lost: the machine was restarted"}
    attempts = tuple(
        an_attempt(number, state="ended", cause=cause, cause_kind=kind)
        for number, (kind, cause) in enumerate(ends.items(), 1)
    )
    service.add(state="running", reason=None, attempts=attempts)
    said = zerotools("show", "1").out
    assert "  lost: its supervisor was killed" in said
    assert "  reboot: the machine was restarted" in said


def test_a_job_whose_export_failed_can_go_on(service: FakeService, client: DaemonClient) -> None:
    newest = {"step": 10, "path": "/o/step-10"}
    service.add(state="succeeded", reason=None, latest_checkpoint=newest)
    assert not any(line.startswith("  go on") for line in page(client.job(1), None))
    service.change(1, reason="the export failed: no room")
    assert "  go on       zerotools retry 1" in page(client.job(1), None)


def test_a_program_that_waits_for_torchs_lock_is_told_of_it(tmp_path: Path) -> None:
    lock = tmp_path / "torch_extensions" / "py311_cpu" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (1000.0, 1000.0))
    phase = {"doing": None, "since": None, "last_progress": 0.0, "quiet": True, "last_line": None}
    job = a_view(1, a_job(), uid=os.geteuid(), state="running", phase=phase).to_json()
    own = job | {"spec": {"script": {"launcher": "plain"}}}
    here = {"XDG_CACHE_HOME": str(tmp_path)}
    assert list(suspects(own, here, now=1000.0 + 3 * 3600)) == [
        (
            f"{lock}, 3 h 00 min old: torch waits until this lock is gone; if no process is "
            "compiling, remove the lock, which a killed process left"
        )
    ]
    assert lock.exists()
    named = {"TORCH_EXTENSIONS_DIR": str(lock.parents[1])}
    assert len(list(suspects(own, named, now=9000.0))) == 1
    assert list(suspects(own, here, now=1030.0)) == [], "somebody may be compiling"
    moving = own | {"phase": phase | {"quiet": False}}
    others = own | {"uid": os.geteuid() + 1}
    for other in (moving, own | {"phase": None}, job, others):
        assert list(suspects(other, here, now=9000.0)) == []


@pytest.mark.parametrize("where", ["here", "on another machine"])
def test_locks_of_this_machine_are_shown_for_its_own_jobs_alone(
    zerotools: Command,
    service: FakeService,
    client: DaemonClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    (tmp_path / "cpu_adam").mkdir()
    lock = tmp_path / "cpu_adam" / "lock"
    lock.touch()
    os.utime(lock, (1000.0, 1000.0))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    phase = {"doing": None, "since": None, "last_progress": 0.0, "quiet": True, "last_line": None}
    view = service.add(uid=os.geteuid(), state="running", phase=phase)
    service.change(1, spec={**view.spec, "script": {"launcher": "plain"}})
    if where != "here":
        record_forwarding(client.socket, RemoteMachine("box", "/s", "/home/ada", 1000, {}))
    shown = zerotools("show", "1").out
    forget_forwarding(client.socket)
    assert (str(lock) in shown) == (where == "here")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({}, "step 10: not verified: no report; check it with zerotools verify"),
        (
            {"verified": {"how": "at_save", "time": None}, "not_verified": None},
            "step 10: verified (its structure was checked when it was saved)",
        ),
        ({"verified": {"how": "by an oracle"}}, "step 10: verified (in another way)"),
        (
            {"verified": None, "not_verified": "a is incomplete"},
            "step 10: not verified: a is incomplete",
        ),
    ],
)
def test_the_newest_checkpoint_is_verified_or_not(
    service: FakeService, client: DaemonClient, said: dict[str, object], line: str
) -> None:
    service.add(latest_checkpoint={"step": 10, "path": "/o/step-10", **said})
    assert f"  verified    {line}" in page(client.job(1), None)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({"step": 8, "path": "s3://b/run/step-8"}, "  copied      step 8: s3://b/run/step-8"),
        ({"why": "no rights"}, "  copied      could not upload: no rights"),
        (
            {"step": 8, "path": "s3://b/8", "why": "no rights"},
            "  copied      step 8: s3://b/8; could not upload: no rights",
        ),
    ],
)
def test_the_newest_copy_in_a_store_is_shown(
    service: FakeService, client: DaemonClient, found: dict[str, object], line: str
) -> None:
    service.add(uploaded={"step": None, "path": None, "time": None, "why": None, **found})
    assert line in page(client.job(1), None)


def test_a_checkpoint_that_was_thinned_is_not_called_verified(
    service: FakeService, client: DaemonClient
) -> None:
    """By the word of the daemon: the files of a checkpoint are not opened here."""
    dropped = "it was thinned on 2027-01-15 (exp_avg, step dropped): training cannot resume from it"
    said = {"verified": {"how": "at_save", "time": None}, "not_verified": None, "thinned": dropped}
    newest = {"step": 10, "path": "/no/such", **said}
    service.add(state="failed", latest_checkpoint=newest)
    lines = page(client.job(1), None)
    assert f"  verified    step 10: {dropped}" in lines
    service.change(1, latest_checkpoint={**newest, "thinned": None})
    assert any("verified    step 10: verified" in line for line in page(client.job(1), None))


def test_an_old_speed_has_its_age_and_no_time_is_left(
    service: FakeService, client: DaemonClient
) -> None:
    step = {"step": 811, "steps": 1000, "tokens_per_second": 2698.0, "step_seconds": 0.4}
    phase = {"doing": None, "since": None, "last_progress": 0.0, "quiet": False, "last_line": None}
    late = {"name": "step", "last_step": time.time() - 7230, "step_seconds": 0.4, "late": True}
    known = phase | late | {"waits_for": None}
    service.add(state="running", reason=None, progress=step, phase=known)
    lines = page(client.job(1), None)
    assert "  speed       2,698 tokens/s, 0.4 s for the last step, 2 h 00 min ago" in lines
    assert "  why         no step for 2 h 00 min (steps take 0.4 s)" in lines
    assert not any(line.startswith("  left") for line in lines)
    service.change(1, phase=known | {"step_is_old": False})
    assert any(line.startswith("  left") for line in page(client.job(1), None))


def test_the_newest_evaluation_is_shown(service: FakeService, client: DaemonClient) -> None:
    found = {"event": "eval", "step": 40, "rank": 0, "loss": 1.5, "accuracy": 0.8125, "name": "x"}
    service.add(state="running", progress={"step": 41, "last_loss": 2.0}, evaluation=found)
    lines = page(client.job(1), None)
    assert "  evaluated   step 40: loss 1.5000  accuracy 0.8125" in lines


def test_a_program_that_reports_nothing_has_no_heartbeat() -> None:
    phase = {"doing": None, "since": None, "last_progress": 0.0, "quiet": False, "last_line": None}
    silent = phase | {"name": None, "late": False, "waits_for": None}
    job = a_view(1, a_job(), state="running", phase=silent).to_json()
    own = job | {"spec": {"script": {"launcher": "plain"}}, "progress": None}
    said = [line for line in page(own, None) if line.startswith("  heartbeat")]
    assert said == [
        "  heartbeat   none: the program reports no steps; call zerotools.worker in the program"
    ]
    assert not any(line.startswith("  heartbeat") for line in page(job, None))


def test_scores_of_tasks_are_shown_with_the_job_that_found_them(
    service: FakeService, client: DaemonClient
) -> None:
    asked = {"job": 8, "state": "waiting", "step": None, "scores": {}}
    service.add(state="running", evaluated_by=asked)
    found = asked | {"state": "succeeded", "step": 40, "scores": {"b/acc": 0.5, "a\x1b/acc": 1 / 3}}
    service.add(state="succeeded", evaluated_by=found)
    assert "  tasks       evaluated by job 8 (waiting)" in page(client.job(1), None)
    (line,) = (each for each in page(client.job(2), None) if each.startswith("  tasks"))
    assert line.startswith("  tasks       step 40: b/acc 0.5  a")
    assert line.endswith("/acc 0.3333 (job 8)")
    assert "\x1b" not in line
