"""The processes with torch imported that the daemon forks jobs from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.core.counts import counted
from zerotools.jobs.doctor.finding import DoctorFinding, ok, warning

WHAT = "warm start"
HOW_TO = "zerotools help warm-start"


def look_at_fork_servers(
    warm: Mapping[str, Any] | None, launch: Mapping[str, Any] | None
) -> Iterator[DoctorFinding]:
    """Check the daemon's records `warm` and `launch`; None: it is older, or does not run. Servers
    that are switched off give no finding."""
    if warm is None or not warm.get("enabled"):
        return
    if (launch or {}).get("by") in ("systemd", "user-systemd"):
        yield warning(
            WHAT,
            "is on, but every job starts cold: supervisors run in separate systemd units",
            f'take [warm_start] out, or set [launch] by = "child" ({HOW_TO} lists the costs)',
        )
        return
    if (trouble := warm.get("trouble")) is not None:
        yield warning(
            WHAT,
            f"the last fork server that failed: {trouble}",
            f"jobs start cold until another one is ready; {HOW_TO} explains the reasons",
        )
    servers = warm.get("servers", ())
    for server in servers:
        yield ok(WHAT, _server(server))
    if not servers and trouble is None:
        yield ok(WHAT, "is on; no fork server runs, and the next job makes one")


def _server(server: Mapping[str, Any]) -> str:
    who = f"pid {server['pid']} for {server['python']}"
    if not server["ready"]:
        return f"{who} still imports"
    held, jobs = server["memory_bytes"] / 2**20, counted(server["jobs"], "job")
    return (
        f"{who} holds {held:.0f} MiB, has started {jobs}, idle for {server['idle_seconds']:.0f} s"
    )
