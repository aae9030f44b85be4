"""Where the jobs of other users run."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.made_attempts import TOKEN
from tests.daemon.users.other_users import AS_ROOT, UID, open_directory, user_of
from zerotoolsd.attempts import rebuild_queue, user_run_dirs
from zerotoolsd.queue.rows import RUNNING, AttemptRow
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.durable import write_json
from zerotoolsd.users.open_as_user import file_rights

pytestmark = AS_ROOT
ACCOUNT = user_of().account


@pytest.fixture
def state() -> Iterator[Path]:
    with open_directory() as place:
        yield place


def attempt(run_dir: Path) -> AttemptRow:
    return AttemptRow(
        job_id=7,
        number=1,
        token=TOKEN,
        state=RUNNING,
        run_dir=str(run_dir),
        gpu_uuids=("GPU-1",),
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
        host=os.uname().nodename,
    )


def test_the_user_reaches_what_is_theirs_and_names_nothing_beside_it(state: Path) -> None:
    own = state / "jobs" / "7"
    for _ in range(2):  # it may be repeated
        user_run_dirs.make_of_job(own, ["attempt-1", "output"], ACCOUNT)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (own.parent, own)}
    assert modes == {own.parent: 0o711, own: 0o755}
    for name in ("attempt-1", "output"):
        found = (own / name).stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (UID, 0o700)
    with file_rights(UID, UID):
        (own / "attempt-1" / "mine").touch()
        for change in (
            lambda: (own / "attempt-2").mkdir(),
            lambda: (own / "attempt-1").rename(own / "gone"),
            lambda: (own / "output").rmdir(),
            lambda: list(own.parent.iterdir()),
        ):
            with pytest.raises(PermissionError):
                change()


def test_only_what_the_daemon_noted_is_an_attempt(state: Path) -> None:
    """A user who forges attempts makes the queue believe nothing when it is made anew."""
    own = state / "jobs" / "7"
    user_run_dirs.make_of_job(own, ["attempt-1", "attempt-2"], ACCOUNT)
    run_dir = own / "attempt-1"
    user_run_dirs.note(run_dir, attempt(run_dir), {"device": "cpu"})
    for number in (1, 2):
        forged = {"token": "00" * 16, "job_id": 7, "gpu_uuids": ["GPU-1", "GPU-2"]}
        write_json(own / f"attempt-{number}" / "attempt.json", forged)
        os.chown(own / f"attempt-{number}" / "attempt.json", UID, UID)
    noted = user_run_dirs.noted(run_dir)
    assert noted is not None
    assert (noted["token"], noted["gpu_uuids"]) == (TOKEN, ["GPU-1"])
    with pytest.raises(ValueError, match=r"begun-2.json is missing"):
        user_run_dirs.noted(own / "attempt-2")
    assert user_run_dirs.noted(own) is None
    store = Store(state, rebuild=True)
    try:
        assert rebuild_queue.compare(state, store, 1.0) == [7]
        assert store.job(7).uid == UID
        assert [(row.token, row.gpu_uuids) for row in store.attempts(7)] == [(TOKEN, ("GPU-1",))]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("made", "is_own", "mode"),
    [(False, True, 0o711), (False, False, 0o711), (True, True, 0o711), (True, False, 0o700)],
)
def test_a_cache_that_a_job_of_root_made_is_no_bar(
    state: Path, made: bool, is_own: bool, mode: int
) -> None:
    shared = state / "data-cache"
    if made:
        shared.mkdir(mode=0o700)
    for _ in range(2):
        user_run_dirs.make_cache(shared / f"uid-{UID}", ACCOUNT, is_own=is_own)
    assert stat.S_IMODE(shared.stat().st_mode) == mode
    assert (shared / f"uid-{UID}").stat().st_uid == UID
