"""Check directories: free space, inodes, permissions, and old lock files."""

from __future__ import annotations

import errno
import os
import pickle
import select
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from zerotools.jobs.client.daemon_address import connect_socket
from zerotools.jobs.doctor.finding import DoctorFinding, ok, problem, warning

LITTLE_BYTES = 10 * 2**30
NO_BYTES = 2**30
FEW_INODES = 0.02
NO_INODES = 1000
OLD_SECONDS = 600.0
CONNECT_SECONDS = 2.0
LOOK_SECONDS = 5.0

_PART = 1 << 16
HANGS = "its file system hangs: check its server, mount and dmesg"

T = TypeVar("T")

StatVfs = Callable[[Path], os.statvfs_result]


def check_free_space(
    places: Mapping[str, Path], statvfs: StatVfs = os.statvfs
) -> Iterator[DoctorFinding]:
    """Check the free space of the directories `places` (purpose -> path).

    If several of the directories are on one file system, this file system is reported once.
    """
    seen: set[int] = set()
    for purpose, path in places.items():
        what = f"disk of {purpose}"
        try:
            looked = result_within(LOOK_SECONDS, partial(_measure, path, statvfs))
        except OSError as error:
            yield problem(what, f"{path}: {error.strerror}", "check its file system")
            continue
        if looked is None:
            yield problem(
                what,
                f"{path} did not answer within {LOOK_SECONDS:g} s",
                HANGS,
            )
            continue
        there, device, found = looked
        if device not in seen:
            seen.add(device)
            yield from _check_file_system(what, there, found)


def _measure(path: Path, statvfs: StatVfs) -> tuple[Path, int, os.statvfs_result]:
    there = next(p for p in (path, *path.parents) if p.exists())
    return there, there.stat().st_dev, statvfs(there)


def result_within(seconds: float, function: Callable[[], T]) -> T | None:
    """Call `function`, and return its result; None if the call takes longer than `seconds`, or
    crashes. An exception of `function` is raised here.

    `function` runs in a child process, because a thread that hangs in the kernel would keep this
    command from ending.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _answer(function, writing)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as answer:
        said, deadline = b"", time.monotonic() + seconds
        while select.select([answer], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = answer.read(_PART)
            if not part:
                break
            said += part
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)  # it may still hang in the kernel
            return None
    os.waitpid(pid, 0)
    if not said:  # the process was killed
        return None
    found = pickle.loads(said)
    if isinstance(found, Exception):
        raise found
    value: T = found
    return value


def _answer(function: Callable[[], object], writing: int) -> None:
    """Call `function` in the child process, write the result to the file descriptor `writing`, and
    exit.
    """
    try:
        try:
            found = function()
        except Exception as error:  # raised in the waiting process
            found = error
        with os.fdopen(writing, "wb") as answer:
            answer.write(pickle.dumps(found))
    finally:
        os._exit(0)


def _check_file_system(what: str, path: Path, found: os.statvfs_result) -> Iterator[DoctorFinding]:
    free = found.f_bavail * found.f_frsize
    said = f"{path} has {free / 2**30:.1f} GiB free"
    # A file system without a count of inodes, such as btrfs, returns 0.
    inodes_left = found.f_favail / found.f_files if found.f_files else 1.0
    if found.f_flag & os.ST_RDONLY:
        yield problem(
            what, f"{path} is mounted read-only", "mount it again as writable, or check dmesg"
        )
    elif free < NO_BYTES:
        yield problem(what, said, "a full disk refuses submits: free space with zerotools clean")
    elif found.f_files and found.f_favail < NO_INODES:
        count = f"{found.f_favail} inodes free"
        yield problem(
            what,
            f"{path} has {count}",
            "remove files: du --inodes -d 1 shows the directories with the most files",
        )
    elif free < LITTLE_BYTES:
        yield warning(
            what,
            said,
            "a checkpoint may need more: free some space with zerotools thin or zerotools clean",
        )
    elif inodes_left < FEW_INODES:
        count = f"{found.f_favail} of {found.f_files} inodes free"
        yield warning(
            what,
            f"{path} has {count}",
            "remove files: du --inodes -d 1 shows the directories with the most files",
        )
    else:
        yield ok(what, said)


def check_state(state_dir: Path, socket_path: Path, uid: int) -> Iterator[DoctorFinding]:
    """Check the owner and the permissions of the state directory, and whether a daemon has
    locked it.
    """
    found = result_within(
        LOOK_SECONDS + CONNECT_SECONDS, lambda: list(_check_state(state_dir, socket_path, uid))
    )
    if found is None:
        yield problem(
            "state",
            f"{state_dir}, or {socket_path}, did not answer within {LOOK_SECONDS:g} s",
            f"{HANGS}; a daemon that uses it does not respond, but the daemon's jobs continue",
        )
    yield from found or ()


def _check_state(state_dir: Path, socket_path: Path, uid: int) -> Iterator[DoctorFinding]:
    if not state_dir.exists():
        yield ok("state", f"{state_dir} does not exist yet: zerotoolsd makes it when it starts")
    else:
        yield from _permissions(state_dir, uid)
        for staged in sorted(state_dir.glob("*.new")):
            yield warning(
                "left over",
                f"{staged} was left by an interrupted start",
                f"while no daemon runs: rm {staged}",
            )
    yield from _socket(socket_path)


def _permissions(path: Path, uid: int) -> Iterator[DoctorFinding]:
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        yield problem("state", f"{path} is not a directory", "name another: --state-dir")
    elif found.st_uid != uid:
        yield problem(
            "state",
            f"{path} belongs to uid {found.st_uid}, but you are uid {uid}",
            f"chown it, set ZEROTOOLS_STATE_DIR, or run as uid {found.st_uid} with sudo",
        )
    elif found.st_mode & 0o022:
        yield problem(
            "state",
            f"{path} can be written by others (mode {found.st_mode & 0o777:04o})",
            f"chmod 700 {path}",
        )
    elif found.st_mode & 0o077:
        yield warning(
            "state",
            f"{path} can be read by others (mode {found.st_mode & 0o777:04o})",
            f"chmod 700 {path}",
        )
    else:
        yield ok("state", f"{path} can be used only by you")


def _socket(path: Path) -> Iterator[DoctorFinding]:
    if not path.exists():
        yield warning(
            "daemon", f"no daemon listens at {path}", "start zerotoolsd, or name its --socket"
        )
        return
    try:
        connect_socket(path, CONNECT_SECONDS).close()
    except TimeoutError:
        yield problem(
            "daemon",
            f"the daemon at {path} accepted no connection within {CONNECT_SECONDS:g} s",
            "check its log; if it hangs, end it with SIGKILL and start it again: its jobs continue",
        )
    except OSError as error:
        if error.errno == errno.EACCES:
            yield problem(
                "daemon", f"you may not connect to {path}", "ask its owner or root for access"
            )
        else:
            yield problem(
                "daemon",
                f"{path} is a left-over socket: no process listens there ({error.strerror})",
                "start zerotoolsd: it replaces the socket",
            )
    else:
        yield ok("daemon", f"listens at {path}")


def check_locks(
    environment: Mapping[str, str], now: float | None = None
) -> Iterator[DoctorFinding]:
    """Yield a finding for each lock of torch's compiler that a killed process may have left.

    Other processes wait for such a lock without end.
    """
    found = result_within(LOOK_SECONDS, lambda: list(_check_locks(environment, now)))
    if found is None:
        home = environment.get("HOME", "/")
        yield problem("locks", f"{home} did not answer within {LOOK_SECONDS:g} s", HANGS)
    yield from found or ()


def _check_locks(environment: Mapping[str, str], now: float | None) -> Iterator[DoctorFinding]:
    now, cache = time.time() if now is None else now, environment.get("XDG_CACHE_HOME")
    caches = Path(cache or Path(environment.get("HOME", "/")) / ".cache")
    places = [
        *(caches / "torch_extensions").glob("*/*/lock"),
        *(caches / "zerotools" / "torch_extensions").glob("**/lock"),
    ]
    if given := environment.get("TORCH_EXTENSIONS_DIR"):
        places += Path(given).glob("*/lock")
    for path in sorted(set(places)):
        try:
            age = now - path.lstat().st_mtime
        except OSError:
            continue
        if age > OLD_SECONDS:
            yield warning(
                "locks",
                f"{path} is {age / 60:.0f} minutes old",
                f"if nothing compiles, a killed process left it: rm {path}",
            )
