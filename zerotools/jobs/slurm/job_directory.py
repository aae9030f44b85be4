"""The directory of a job under Slurm: its records, which its nodes and every login node share.

    job.json                      the job as it was submitted
    submissions/1/batch.sh        the input of sbatch; one directory for each submit or resume
    submissions/1/submission.json the token that identifies the job in Slurm, and Slurm's number
    submissions/1/slurm.log       the output of the batch script and srun
    submissions/1/end.json        the end of the job; written once, only by the batch script
    stop.json                     a request to save and end
    state.json, view.json         the state of the job, and the job as users see it
    attempts/1/                   one start of the ranks; made once, by the process that starts them
    attempts/1/beat-0             the heartbeat of node 0: a number that grows
    attempts/1/node-0/            the run directory of the supervisor on node 0

Each job has its own directory inside one directory of the user (`slurm_home`), on a file system
that all nodes of the cluster share. Every record is written completely under another name, and then
renamed.
"""

from __future__ import annotations

import errno
import getpass
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.open_files import sync_directory
from zerotools.io.files.read_json import read_json

HOME_VARIABLE = "ZEROTOOLS_SLURM_DIR"
SCHEMA = "zerotools.slurm/1"
JOB, STOP, STATE, VIEW = "job.json", "stop.json", "state.json", "view.json"
BATCH, SUBMISSION, LOG, END = "batch.sh", "submission.json", "slurm.log", "end.json"
SUBMISSIONS, ATTEMPTS, OUTPUT = "submissions", "attempts", "output"
_LARGEST = 16 << 20
_WORD = re.compile(r"[^A-Za-z0-9._-]+")


def slurm_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory that contains all job directories: $ZEROTOOLS_SLURM_DIR, else
    `zerotools/slurm` in the user's state directory.
    """
    if given := environment.get(HOME_VARIABLE):
        return Path(given).absolute()
    if given := environment.get("XDG_STATE_HOME"):
        return Path(given).absolute() / "zerotools" / "slurm"
    try:
        return Path.home() / ".local" / "state" / "zerotools" / "slurm"
    except RuntimeError:
        raise BadRequest(f"no home directory was found; set {HOME_VARIABLE}") from None


@dataclass(frozen=True)
class JobDirectory:
    """The directory of one job.

    A method that reads a record returns None if the file does not exist or is not complete.
    """

    path: Path

    def job(self) -> dict[str, Any] | None:
        """Return the record `job.json`. Its key `spec` has all keys of the job, and its key `given`
        only the keys that the user set.
        """
        return read_record(self.path / JOB)

    def submissions(self) -> list[int]:
        """Return the numbers of the job's submissions, in ascending order."""
        return _numbered(self.path / SUBMISSIONS)

    def submission_path(self, number: int) -> Path:
        """Return the directory with the files of submission `number`."""
        return self.path / SUBMISSIONS / str(number)

    def submission(self, number: int) -> dict[str, Any] | None:
        """Return the record `submission.json` of a submission.

        Its keys are `token`, `time`, and `job_id`, which is None until Slurm's number is known.
        """
        return read_record(self.submission_path(number) / SUBMISSION)

    def end(self, number: int) -> dict[str, Any] | None:
        """Return the record `end.json`, which says how submission `number` ended."""
        return read_record(self.submission_path(number) / END)

    def has_ended(self) -> bool:
        """Return whether the newest submission has recorded its end."""
        newest = max(self.submissions(), default=0)
        return bool(newest) and os.path.lexists(self.submission_path(newest) / END)

    def is_attended(self) -> bool:
        """Return whether a daemon has the job in its queue."""
        return (self.job() or {}).get("attended") is True

    def attempts(self) -> list[int]:
        """Return the numbers of the job's attempts, in ascending order."""
        return _numbered(self.path / ATTEMPTS)

    def attempt_path(self, number: int) -> Path:
        """Return the directory with the files of attempt `number`."""
        return self.path / ATTEMPTS / str(number)

    def run_dir(self, attempt: int, node: int) -> Path:
        """Return the run directory of the supervisor of `attempt` on node `node`."""
        return self.attempt_path(attempt) / f"node-{node}"

    def stop(self) -> dict[str, Any] | None:
        """Return the record of the request to end the job, with the keys `who` and `time`."""
        return read_record(self.path / STOP)

    def request_stop(self, who: str) -> None:
        """Record that `who` (a user) has asked the job to end: running nodes save and end, and
        waiting nodes do not begin.
        """
        write_record(self.path / STOP, {"who": who, "time": time.time()})

    def new_submission(self, token: str, after: int | None = None) -> int:
        """Make the directory of the next submission, and return its number.

        This number is `after` + 1. By default, it is the newest number + 1.

        Only the process that makes the directory may submit.

        Raises:
            FileExistsError: another process has made the directory.
            FileNotFoundError: the job was removed.
        """
        number = (max(self.submissions(), default=0) if after is None else after) + 1
        path = self.submission_path(number)
        draft = path.with_name(f".{number}.{secrets.token_hex(4)}")
        draft.mkdir()
        record = {"token": token, "time": time.time(), "job_id": None}
        write_record(draft / SUBMISSION, record)
        try:
            draft.rename(path)  # complete at once, because one without a record counts as lost
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise FileExistsError(error.errno, error.strerror, str(path)) from None
            raise
        sync_directory(path.parent)
        return number

    def remove_unsubmitted(self) -> None:
        """Remove the directory of a job that has no submission.

        If another process is submitting the job, do nothing.
        """
        with suppress(OSError):
            (self.path / SUBMISSIONS).rmdir()  # from now on no process can submit it
            gone = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
            self.path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def record_number(self, submission: int, job_id: str) -> None:
        """Record `job_id`, the number that Slurm gave to a submission."""
        known = self.submission(submission) or {}
        if known.get("job_id") != job_id:
            write_record(self.submission_path(submission) / SUBMISSION, {**known, "job_id": job_id})

    def record_unanswered(self, submission: int) -> None:
        """Record that Slurm's controller did not answer, so it is unknown whether Slurm has queued
        the submission.
        """
        known = self.submission(submission) or {}
        write_record(self.submission_path(submission) / SUBMISSION, {**known, "unanswered": True})


def keyed_name(key: str) -> str:
    """Return the directory name of a job that is submitted with the idempotency key `key`."""
    word = _word(key)
    if word != key:  # another key may give the same name
        word += f"-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    return f"key-{word}"


def _word(text: str) -> str:
    return _WORD.sub("_", text)[:60]


def new_job_directory(
    home: Path, name: str, record: Mapping[str, Any], key: str | None
) -> JobDirectory:
    """Make and return the directory of a new job.

    If a job was submitted with the same `key` before, return its directory instead.

    Raises BadRequest: the directory cannot be made.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = home / (keyed_name(key) if key else f"{stamp}-{_word(name)}-{secrets.token_hex(3)}")
    if re.search(r"[\n%\\]", str(path)):
        raise BadRequest(
            f"{home}: Slurm does not allow % or \\ in the paths of logs; set {HOME_VARIABLE} to "
            "another directory"
        )
    directory = JobDirectory(path)
    draft = home / f".{path.name}.{secrets.token_hex(4)}"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.mkdir(mode=0o700)
        (draft / SUBMISSIONS).mkdir()
        write_record(draft / JOB, {"schema": SCHEMA, **record})
        draft.rename(path)  # complete at once: another process may look for the same key now
        sync_directory(home)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR) and key and home.is_dir():
            if directory.job() is None:
                if not path.exists():  # its job was refused, so it was removed
                    return new_job_directory(home, name, record, key)
                raise BadRequest(f"{path} exists and holds no job; remove it") from None
            return directory
        raise BadRequest(
            f"{path} cannot be made: {error.strerror}; set {HOME_VARIABLE} to a directory that "
            "all nodes of the cluster share"
        ) from None
    return directory


def job_directories(home: Path) -> list[JobDirectory]:
    """Return the directories of all jobs in `home`, the newest first."""
    found = []
    with suppress(OSError):
        for each in home.iterdir():
            if each.name.startswith("."):
                continue
            with suppress(OSError):
                found.append(((each / JOB).stat().st_mtime, each))
    return [JobDirectory(path) for _, path in sorted(found, reverse=True)]


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the values in the record file `path`; None if it does not exist or cannot be read."""
    try:
        tree = read_json(path, _LARGEST, data_size=lambda: 0, is_source=False)
    except (OSError, ValueError, BadFile):
        return None
    return tree if isinstance(tree, dict) else None


def write_record(path: Path, tree: Mapping[str, Any]) -> None:
    """Replace the record file `path` by a new file with the values `tree`.

    The new file is complete and flushed to disk, and has mode 0600. Raises OSError.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(tree) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        error.filename, error.filename2 = str(path), None
        raise
    sync_directory(path.parent)


def _numbered(path: Path) -> list[int]:
    with suppress(OSError):
        return sorted(int(each.name) for each in path.iterdir() if each.name.isdecimal())
    return []


def submitter_name() -> str:
    """Return the name of this user, for records that other users read."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
