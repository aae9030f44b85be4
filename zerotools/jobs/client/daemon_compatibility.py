"""Compare the versions of client and daemon, and find out which of them must be upgraded if they
do not work together.

The module also checks whether this Python has the packages that the daemon needs (the extra
`daemon`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from zerotools import version
from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import package_not_installed

API_VERSION = 1
"""The version of the API that this client uses, and that the daemon offers under `/v1`."""
FIRST_API = (1,)
"""The API versions of an old daemon, which does not list `api_versions` in `/v1/health`."""
FIRST_STATES = frozenset(
    {
        *("queued", "launching", "running", "stopping", "waiting_retry"),
        *("succeeded", "failed", "cancelled", "stopped"),
    }
)
"""The job states that every daemon knows.

If a client asks for jobs in another state, an old daemon refuses.
"""


NEEDED = "aiohttp"
"""The package that only the daemon imports, not the client."""


def which_to_upgrade(health: Mapping[str, Any], mine: str) -> str | None:
    """Return a sentence that names the program to upgrade after a refused request: client or
    daemon. Return None if both have the same version.

    `health` is the daemon's answer to a health request, and `mine` is the client's version. A
    version may also name a commit. Commits have no order, so only releases are compared.
    """
    its = str(health.get("version"))
    spoken = api_versions(health)
    older = version.version_order(its) < version.version_order(mine)
    if "api_versions" not in health:  # whatever its version, it is older than this client
        return (
            f"the daemon is an older zerotoolsd ({its}): upgrade it and restart it (running "
            "jobs continue)"
        )
    if API_VERSION not in spoken:
        older = max(spoken, default=0) < API_VERSION
    elif its == mine:
        return None
    elif version.version_order(its) == version.version_order(mine):
        return (
            f"the daemon is zerotoolsd {its} and this is zerotools {mine}, built from another "
            "commit: restart the daemon from this installation, or use the zerotools of the "
            "daemon's installation"
        )
    who = f"the daemon is zerotoolsd {its} and this is zerotools {mine}"
    if older:
        return f"{who}: upgrade the daemon and restart it (running jobs continue)"
    return f"{who}: upgrade this zerotools to {its}"


def api_versions(health: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the versions of the HTTP API that the daemon supports, from its answer `health`."""
    said = health.get("api_versions")
    if not isinstance(said, list):
        return FIRST_API
    return tuple(each for each in said if type(each) is int)


def missing_package() -> BadRequest:
    """Return the error for a daemon that cannot start because the package NEEDED is not
    installed.
    """
    return package_not_installed("zerotoolsd", NEEDED)


def why_no_daemon() -> str | None:
    """Return a sentence that says how to install the missing package of the daemon; None if the
    package is installed.
    """
    return str(missing_package()) if importlib.util.find_spec(NEEDED) is None else None
