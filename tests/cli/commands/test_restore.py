from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Done
from tests.jobs.client.test_queue_backup import fill
from zerotools.cli.main import build, run
from zerotools.jobs.client.queue_backup import RESTORED, back_up_queue


def test_what_was_restored_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def zerotools(*arguments: str) -> Done:
        return Done(run(build(), list(arguments)), *capsys.readouterr())

    state, copy = tmp_path / "state", tmp_path / "copy.db"
    state.mkdir()
    fill(state).close()
    back_up_queue(state, copy)
    done = zerotools("restore", str(copy), "--state-dir", str(state))
    first, kept = done.out.splitlines()
    assert (done.status, first) == (0, "the queue has 2 jobs, 1 of them unfinished")
    assert kept.startswith(f"kept: {state}/zerotools.db.before-")
    done = zerotools("restore", str(copy), "--state-dir", str(state), "--release", "--json")
    assert json.loads(done.out)["copy"]["jobs"] == 2
    assert json.loads((state / RESTORED).read_text())["release"] is True
    assert zerotools("restore", str(tmp_path / "no"), "--state-dir", str(state)).status == 2
