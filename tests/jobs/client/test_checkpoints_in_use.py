"""Which checkpoints the jobs of a daemon need, by the views that it gives."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.golden_files import JOB
from zerotools.jobs.client.checkpoints_in_use import (
    MOST_HANGING,
    UNFINISHED,
    NeededPathReader,
    ResumePath,
    needed_paths,
    needs_of,
)
from zerotools.runs.manifest import write_manifest
from zerotools.runs.training_record import read_record, write_record

SILENT = "print('ready', flush=True)\nfor line in __import__('sys').stdin: pass"
AFTER_THE_FIRST = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    if "hangs" not in line:
        print('[["/a", "/b", "why"]]', flush=True)
"""


def saved(output_dir: Path) -> None:
    """Two checkpoints of a job."""
    for step in (3, 6):
        path = output_dir / f"step-{step:08d}"
        shutil.copytree(JOB, path)
        write_record(path, replace(read_record(path), step=step))
        write_manifest(path)


class FakeClient:
    """Answers as `DaemonClient.every_job` does."""

    def __init__(self, jobs: list[dict[str, Any]]) -> None:
        self._jobs = jobs
        self.asked: list[str] = []

    def every_job(self, *, state: str) -> list[dict[str, Any]]:
        self.asked.append(state)
        return [job for job in self._jobs if job["state"] == state]


def job(**values: Any) -> dict[str, Any]:
    return {"id": 7, "name": "tiny", "state": "running", "spec": {}, "attempts": [], **values}


def needed(checkpoint: Path, found: list[ResumePath]) -> str | None:
    return next((each.sentence(checkpoint) for each in found if each.concerns(checkpoint)), None)


def test_the_newest_of_its_own_and_what_it_names(tmp_path: Path) -> None:
    saved(tmp_path)
    named = {"resume_from": str(tmp_path / "elsewhere")}
    found = list(needs_of(job(output_dir=str(tmp_path), spec=named)))
    assert [(need.path.name, need.why.split(" =")[0]) for need in found] == [
        ("step-00000006", "it is the newest checkpoint in the job's output directory"),
        ("elsewhere", "the job has resume_from"),
    ]
    assert needed(tmp_path / "step-00000003", found) is None
    said = needed(tmp_path / "step-00000006", found)
    assert said is not None
    assert "is needed by job 7 (tiny), which is running: it is the newest checkpoint in the" in said


def test_what_it_reported_and_what_its_attempt_began_from(tmp_path: Path) -> None:
    told = job(
        latest_checkpoint={"step": 3, "path": str(tmp_path / "save" / "global_step3")},
        attempts=[{"resumed_from": str(tmp_path / "old")}],
    )
    found = list(needs_of(told))
    for name in ("save/global_step3", "save", "old"):
        assert needed(tmp_path / name, found)
    assert needed(tmp_path / "save" / "global_step2", found) is None


def test_a_directory_of_a_program_is_needed_as_a_whole(tmp_path: Path) -> None:
    found = list(needs_of(job(spec={"resume_from": str(tmp_path)})))
    assert "resume_from = " in (needed(tmp_path / "global_step3", found) or "")


def test_the_newest_in_the_directory_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    told = job(spec={"script": {"checkpoint_dir": str(tmp_path)}})
    assert [need.path for need in needs_of(told)] == [tmp_path / "one"]
    assert list(needs_of(job(spec={"script": {"checkpoint_dir": str(tmp_path / "none")}}))) == []


def test_every_state_that_is_not_over_is_asked_for(tmp_path: Path) -> None:
    client = FakeClient([job(state="held", spec={"resume_from": str(tmp_path / "a")})])
    found = needed_paths(client)  # type: ignore[arg-type]
    assert [need.state for need in found] == ["held"]
    assert tuple(client.asked) == (*UNFINISHED, *reversed(UNFINISHED))


def test_a_job_that_goes_from_state_to_state_is_found(tmp_path: Path) -> None:
    class Moving(FakeClient):
        def every_job(self, *, state: str) -> list[dict[str, Any]]:
            found = super().every_job(state=state)
            if state == "queued":
                self._jobs = [job(state="running", spec={"resume_from": str(tmp_path)})]
            elif state == "running":  # it crashed: queued again, which was asked for before
                self._jobs = [job(state="queued", spec={"resume_from": str(tmp_path)})]
            return found

    assert UNFINISHED.index("queued") < UNFINISHED.index("running")
    start = [job(state="starting", spec={"resume_from": str(tmp_path)})]
    assert len(needed_paths(Moving(start))) == 1  # type: ignore[arg-type]


def test_the_one_before_a_newest_that_is_damaged(tmp_path: Path) -> None:
    saved(tmp_path)
    next((tmp_path / "step-00000006" / "dcp").glob("*.distcp")).write_bytes(b"cut off")
    found = list(needs_of(job(output_dir=str(tmp_path))))
    said = needed(tmp_path / "step-00000003", found)
    assert said is not None
    assert "the newest complete checkpoint in the job's output directory, because " in said


def reader(program: str) -> NeededPathReader:
    return NeededPathReader((sys.executable, "-c", program), deadline_seconds=0.3)


def test_what_a_process_sees_is_what_is_needed(tmp_path: Path) -> None:
    saved(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    client: Any = FakeClient([job(output_dir=str(tmp_path / "link"))])
    (need,) = needed_paths(client)
    assert need.path == tmp_path / "link" / "step-00000006"
    assert need.real == tmp_path / "real" / "step-00000006"
    assert need.concerns(tmp_path / "real" / "step-00000006")


def test_one_that_does_not_respond_holds_up_none_of_the_others() -> None:
    found = reader(AFTER_THE_FIRST)
    assert found.needs(job(name="hangs")) is None
    seen = found.needs(job())
    assert seen is not None
    assert [each.real for each in seen] == ["/b"]
    found.close()


def test_what_a_silent_job_names_is_needed(tmp_path: Path) -> None:
    named = {"resume_from": str(tmp_path / "a"), "script": {"checkpoint_dir": str(tmp_path / "c")}}
    client: Any = FakeClient([job(output_dir=str(tmp_path / "out"), spec=named)])
    found = needed_paths(client, reader(SILENT))
    assert {need.path.name for need in found} == {"out", "a", "c"}
    assert found[0].concerns(tmp_path / "out" / "step-3")
    assert not any(need.concerns(tmp_path / "other") for need in found)
    assert "the file system does not respond" in found[0].sentence(tmp_path)


def test_a_process_that_starts_too_slowly_gives_no_answer() -> None:
    late = "import sys\nfor line in sys.stdin: print('ready', flush=True)"
    found = NeededPathReader((sys.executable, "-c", late), deadline_seconds=30.0, start_seconds=0.1)
    assert found.needs(job()) is None
    assert found.needs(job()) is None
    found.close()


def test_few_processes_are_left_behind() -> None:
    found = reader(SILENT)
    assert [found.needs(job()) for _ in range(MOST_HANGING + 3)] == [None] * (MOST_HANGING + 3)
    assert found._hanging == MOST_HANGING
    found.close()
