from __future__ import annotations

import json
from pathlib import Path

from tests.daemon.made_attempts import an_attempt_row
from zerotools.runs.find_job_checkpoints import directory_name
from zerotoolsd.dispatch.end_jobs_for_memory import unsaved_seconds
from zerotoolsd.queue.clocks import Moment


def test_what_is_not_saved_counts_from_the_last_checkpoint_or_the_start(tmp_path: Path) -> None:
    def unsaved(*messages: dict[str, object], resumed_from: str | None = None) -> float:
        lines = "".join(json.dumps(each) + "\n" for each in messages)
        (tmp_path / "progress.jsonl").write_text(lines)
        attempt = an_attempt_row(
            run_dir=str(tmp_path),
            state="running",
            started=100.0,
            started_clock=50.0,
            boot_id="b",
            resumed_from=resumed_from,
        )
        return unsaved_seconds(attempt, Moment(400.0, 350.0, "b"))

    begun = f"/out/{directory_name(1000)}"
    step = {"event": "step", "step": 1010, "step_seconds": 2.0}
    saved = {"event": "checkpoint", "step": 1005, "path": "/out/step-1005"}
    assert unsaved(step) == 2020.0
    assert unsaved(step, resumed_from=begun) == 20.0
    assert unsaved(saved, step, resumed_from=begun) == 10.0
    assert unsaved() == 300.0  # a program that tells nothing
