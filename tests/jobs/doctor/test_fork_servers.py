"""What doctor says of the processes from which jobs are forked."""

from __future__ import annotations

from typing import Any

from zerotools.jobs.doctor.finding import OK, DoctorFinding
from zerotools.jobs.doctor.fork_servers import look_at_fork_servers

CHILD = {"by": "child", "why": "children of the daemon"}
SERVER = {
    "kind": "0badcafe",
    "pid": 4711,
    "python": "/env/bin/python",
    "ready": True,
    "memory_bytes": 340 * 2**20,
    "idle_seconds": 61.4,
    "jobs": 1,
}


def found(launch: dict[str, Any] | None = None, **warm: Any) -> list[DoctorFinding]:
    told = {"enabled": True, "trouble": None, "servers": [], **warm}
    return list(look_at_fork_servers(told, CHILD if launch is None else launch))


def test_nothing_is_said_of_what_is_off_or_unknown() -> None:
    assert found(enabled=False) == []
    assert list(look_at_fork_servers(None, CHILD)) == []


def test_each_server_is_shown_with_its_memory() -> None:
    (none,) = found()
    assert none.found == "is on; no fork server runs, and the next job makes one"
    one, other = found(servers=[SERVER, {**SERVER, "ready": False, "memory_bytes": None}])
    assert one.level == other.level == OK
    held = "holds 340 MiB, has started 1 job, idle for 61 s"
    assert one.found == f"pid 4711 for /env/bin/python {held}"
    assert other.found == "pid 4711 for /env/bin/python still imports"


def test_what_failed_and_what_cannot_be_are_warnings() -> None:
    (failed,) = found(trouble="importing started threads")
    assert failed.level != OK
    assert failed.found == "the last fork server that failed: importing started threads"
    (useless,) = found({"by": "systemd", "why": "started by systemd"})
    assert "every job starts cold" in useless.found
    assert "[launch]" in str(useless.do)
