from __future__ import annotations

import json
import stat
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService

KEYS = ("device", "ranks", "train.steps", "train.batch_size", "model.config", "data.text", "name")


@pytest.fixture
def jobs(service: FakeService) -> FakeService:
    service.add(state="queued", name="tiny", set_keys=KEYS)
    return service


def editor(tmp_path: Path, program: str) -> str:
    path = tmp_path / "editor"
    path.write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_keys_are_set_and_left_to_their_defaults(zerotools: Command, jobs: FakeService) -> None:
    done = zerotools("edit", "tiny", "--set", "train.steps=80", "--set", "seed=3")
    assert done.out == "job 1 (tiny) is queued: 2 ranks on CPU, ZeRO stage 3, 80 steps\n"
    assert (jobs.views[1].spec["train"]["steps"], jobs.views[1].spec["seed"]) == (80, 3)
    assert zerotools("edit", "tiny", "--unset", "seed", "--set", "env.LR=1e-4,2").status == 0
    assert jobs.views[1].spec["env"]["LR"] == "1e-4,2"
    assert jobs.views[1].spec["seed"] == 0
    done = zerotools("edit", "tiny", "--set", "steps")
    assert (done.status, "--set steps: must be KEY=VALUE" in done.err) == (2, True)


def test_what_the_editor_leaves_is_what_changes(
    zerotools: Command, jobs: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = tmp_path / "shown.json"
    program = f'cp "$1" {shown}; sed -i "s/40/44/" "$1"; touch -d @9 "$1"'
    monkeypatch.setenv("VISUAL", editor(tmp_path, program))
    assert zerotools("edit", "1").status == 0
    assert jobs.views[1].spec["train"]["steps"] == 44
    assert "env" not in json.loads(shown.read_text())
    for program, said in (
        ("true", "the job was not changed in the editor"),
        ('echo "{" > "$1"; touch -d @9 "$1"', "the text from the editor is not JSON"),
        ('echo "[]" > "$1"; touch -d @9 "$1"', "is not a JSON object"),
    ):
        monkeypatch.setenv("VISUAL", editor(tmp_path, program))
        done = zerotools("edit", "1")
        assert (done.status, said in done.err) == (2, True), done.err
    assert jobs.views[1].spec["train"]["steps"] == 44


def test_without_a_terminal_no_editor_is_opened(
    zerotools: Command, jobs: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.setattr("click.edit", lambda *_, **__: pytest.fail("an editor was opened"))
    done = zerotools("edit", "1")
    assert (done.status, "an editor, which needs a terminal" in done.err) == (2, True), done.err


def test_a_job_starts_at_another_time_or_at_any(zerotools: Command, jobs: FakeService) -> None:
    jobs.change(1, state="waiting")
    assert zerotools("edit", "tiny", "--begin", "2099-01-31T22:30").status == 0
    assert jobs.views[1].begin == datetime(2099, 1, 31, 22, 30).timestamp()
    assert zerotools("edit", "tiny", "--begin", "now").status == 0
    assert jobs.views[1].begin is None
    for given, said in (
        ("", "--begin : is not a time"),
        ("+nan", "--begin +nan: "),
        ("+99999999999999d", "--begin +99999999999999d: "),
        ("nan", "--begin nan: is not a time"),
        ("-5", "--begin -5: is not a time"),
        ("2001-01-01", "--begin 2001-01-01: is in the past (it is now"),
    ):
        done = zerotools("edit", "tiny", "--begin", given)
        assert (done.status, said in done.err) == (2, True), done.err
    assert jobs.views[1].begin is None
