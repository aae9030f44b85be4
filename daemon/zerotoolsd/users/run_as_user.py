"""Becomes a user permanently, then runs a program as that user: `run_as_user.py WHO PROGRAM
[ARGUMENT...]`.

WHO is a JSON object with `uid`, `gid`, `groups`. Optional keys:

    processes, open_files: limits.
    umask: the umask of the program.
    output: a file for the program's output.
    group: a control group, which this program makes and enters. It has `name` and `limits`; only
        root can change the limits.
    given: the program gets the variables that begin with PREFIX, without the prefix, so that no
        variable that a user chose has an effect on `run_as_user.py` itself. If the variable
        REST + name exists, its value is appended to the value of `name`.

No path of a job is opened before the process has become the user. A process that cannot become the
user, or could become another user again, ends with NOT_DROPPED and one line with the reason.

This program and the modules that it imports need only the standard library. The program is run by
its path with `-I -S`.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

PREFIX, REST = "to:", "rest:"
NOT_DROPPED = 77
"""Exit status EX_NOPERM of sysexits.h.

The job is not started again, because every start would fail.
"""
NOT_NOW = 75
"""Exit status EX_TEMPFAIL of sysexits.h: an error of the machine, or a limit of the user."""
MOST_GROUPS = "1000"
"""The largest number of control groups that a user may make in the group of an attempt."""
SUPERVISED, FIRST = "0", "500"
"""OOM scores: of a supervisor, which is killed after its ranks; and of a short helper, which is
killed first.
"""
_PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 38, 39
_CAPABILITIES = (b"CapPrm:", b"CapEff:", b"CapAmb:")
_LATER = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS, errno.ENOLCK),
        *(errno.EADDRINUSE, errno.EADDRNOTAVAIL),
        *(errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENODEV, errno.ENXIO, errno.EMLINK),
        *(errno.ENOTCONN, errno.EREMOTEIO),
    }
)
"""The same errors as in `supervisor.transient_os_errors`, which the user might not be able to read.
After these errors, the job waits.
"""
_libc = ctypes.CDLL(None, use_errno=True)


class NotDropped(Exception):
    """The process has not become the user, or could become another user again; the message says
    why.
    """


class NoGroup(Exception):
    """The control group is not available; the message gives the reason."""


def become_user(uid: int, gid: int, groups: Collection[int]) -> None:
    """Give this process the ids of the user irreversibly: real, effective and saved ids, and
    groups.

    If the process has these ids already, only check its rights. Raises NotDropped; OSError for a
    transient error of the machine.
    """
    if uid <= 0 or gid < 0:
        raise NotDropped(
            f"uid {uid}, gid {gid}: jobs of other users are run only as a uid above 0 and a gid "
            "of 0 or more"
        )
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        try:
            os.setgroups(sorted({gid, *groups}))
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        except OSError as error:
            if error.errno in _LATER:
                raise
            raise NotDropped(
                f"the daemon cannot become uid {uid}, gid {gid}: {error.strerror}; it needs "
                "CAP_SETUID and CAP_SETGID"
            ) from None
    check_dropped_rights(uid, gid, groups)


def check_dropped_rights(uid: int, gid: int, groups: Collection[int]) -> None:
    """Raise NotDropped if this process has rights that the user does not have, or could get such
    rights.
    """
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or not _libc.prctl(
        _PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0
    ):
        raise NotDropped(f"no_new_privs cannot be set: {os.strerror(ctypes.get_errno())}")
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        raise NotDropped(
            f"the process runs as uids {os.getresuid()} and gids {os.getresgid()}, not as uid "
            f"{uid}, gid {gid}"
        )
    if not set(os.getgroups()) <= {gid, *groups}:
        raise NotDropped(
            f"the process has groups {os.getgroups()}, but uid {uid} is not in all of them"
        )
    for ids in ((-1, 0, -1), (0, 0, 0)):
        try:
            os.setresuid(*ids)
        except OSError:
            continue
        raise NotDropped(f"the process could become root again from uid {uid}")
    kept = [name for name, value in _capabilities().items() if value]
    if kept:
        raise NotDropped(f"the process keeps capabilities of the daemon ({', '.join(kept)})")


def _capabilities() -> dict[str, int]:
    # By descriptor and in bytes: a codec might have to be imported, which the user may not read.
    fd = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        lines = os.read(fd, 1 << 16).split(b"\n")
    finally:
        os.close(fd)
    found = (line.split() for line in lines if line.startswith(_CAPABILITIES))
    return {words[0].decode().rstrip(":"): int(words[1], 16) for words in found}


def set_limits(who: Mapping[str, Any]) -> None:
    """Set the resource limits in `who`; no limit becomes higher than it is now. Raises OSError."""
    names = {"processes": resource.RLIMIT_NPROC, "open_files": resource.RLIMIT_NOFILE}
    for name, number in names.items():
        if who.get(name) is not None:
            _, hard = resource.getrlimit(number)
            most = int(who[name])
            if hard != resource.RLIM_INFINITY:
                most = min(most, hard)
            resource.setrlimit(number, (most, most))


def enter_group(group: Mapping[str, Any], uid: int, gid: int) -> None:
    """Make a control group with limits, move this process into it, and let the user make groups in
    it.

    The process cannot leave the group again, because the groups above belong to root. If no limits
    are given, a failure is ignored. Raises NoGroup.
    """
    sys.path.insert(0, os.path.realpath(f"{__file__}/../../.."))
    from zerotoolsd.supervisor.attempt_cgroup import NotDelegated, make_group, write_setting

    limits = group["limits"]
    try:
        made = make_group(group["name"], limits, own=(os.getpid(),))
        write_setting(made.path / "cgroup.max.descendants", MOST_GROUPS)
        write_setting(made.path / "cgroup.procs", "0")
        for name in ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"):
            os.chown(made.path / name, uid, gid)
    except (NotDelegated, OSError) as error:
        if limits:
            raise NoGroup(f"the limits of the job cannot be set: {error}") from None


def be_ended_first(score: str) -> None:
    """Set the OOM score of this process to `score`, in place of the score that it inherits from the
    daemon, which is protected. The user must not choose the score.
    """
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, score.encode())
    finally:
        os.close(fd)


def environment_of(who: Mapping[str, Any], found: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program, made from the environment `found` of this process."""
    if not who.get("given"):
        return dict(found)
    return {
        name[len(PREFIX) :]: text + found.get(REST + name, "")
        for name, text in found.items()
        if name.startswith(PREFIX)
    }


def _status_of(error: OSError) -> int:
    return NOT_NOW if error.errno in _LATER else NOT_DROPPED


def _fail(status: int, why: str) -> NoReturn:
    os.write(2, f"{why}\n".encode(errors="backslashreplace"))
    raise SystemExit(status)


def main(arguments: Sequence[str]) -> NoReturn:
    """Become the user and execute the program in this process.

    If that fails, the process ends with an exit status for the kind of error.
    """
    who = json.loads(arguments[0])
    program = list(arguments[1:])
    try:
        # Before the change: another user may not set it.
        if os.geteuid() == 0:
            be_ended_first(FIRST if who.get("given") else SUPERVISED)
        if who.get("group"):
            enter_group(who["group"], who["uid"], who["gid"])
        set_limits(who)
        become_user(who["uid"], who["gid"], who["groups"])
    except NotDropped as error:
        _fail(NOT_DROPPED, f"it was not started: {error}")
    except NoGroup as error:
        _fail(NOT_NOW, f"it was not started: {error}")
    except OSError as error:
        why = f"uid {who['uid']}, its groups and limits cannot be set: {error.strerror}"
        _fail(_status_of(error), f"it was not started: {why}")
    os.umask(int(who.get("umask", 0o077)))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and passes on so
        signal.signal(number, signal.SIG_DFL)
    try:
        if who.get("output") is not None:
            _write_to(who["output"])
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.execve(program[0], program, environment_of(who, os.environ))
    except OSError as error:
        name = error.filename or program[0]
        _fail(_status_of(error), f"uid {who['uid']} cannot start {name}: {error.strerror}")


def _write_to(path: str) -> None:
    flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    for number in (1, 2):
        os.dup2(fd, number)


if __name__ == "__main__":
    main(sys.argv[1:])
