"""Client and daemon of different versions: they work together, or a message names the one to
upgrade."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools import version

API_VERSION = 1
"""The version of this client, and of the daemon under `/v1`."""
FIRST_API = (1,)
"""The versions of a daemon without them in `/v1/health`: it is older than `api_versions`."""
FIRST_STATES = frozenset(
    {
        *("queued", "launching", "running", "stopping", "waiting_retry"),
        *("succeeded", "failed", "cancelled", "stopped"),
    }
)
"""The states that every daemon knows; an older one refuses to list jobs of another."""


def which_to_upgrade(health: Mapping[str, Any], mine: str) -> str | None:
    """Return one sentence for a user that a daemon with this `health` refused; None if both have
    one version. Versions may name commits, which have no order, so only releases are compared."""
    its = str(health.get("version"))
    spoken = api_versions(health)
    older = version.order(its) < version.order(mine)
    if "api_versions" not in health:  # whatever its version, it is older than this client
        return (
            f"the daemon is an older zerotoolsd ({its}): upgrade it and restart it (running "
            "jobs continue)"
        )
    if API_VERSION not in spoken:
        older = max(spoken, default=0) < API_VERSION
    elif its == mine:
        return None
    elif version.order(its) == version.order(mine):
        return (
            f"the daemon is zerotoolsd {its} and this is zerotools {mine}, of another commit: "
            "restart the daemon from this installation, or use the zerotools of the daemon's"
        )
    who = f"the daemon is zerotoolsd {its} and this is zerotools {mine}"
    if older:
        return f"{who}: upgrade the daemon and restart it (running jobs continue)"
    return f"{who}: upgrade this zerotools to {its}"


def api_versions(health: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the versions of the API that the daemon speaks."""
    said = health.get("api_versions")
    if not isinstance(said, list):
        return FIRST_API
    return tuple(each for each in said if type(each) is int)
