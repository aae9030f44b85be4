"""Checks whether this Python has the packages of the daemon (extra `daemon`)."""

from __future__ import annotations

import importlib.util

from zerotools.core.errors import BadRequest
from zerotools.io.files.packages import missing

NEEDED = "aiohttp"
"""The package that only the daemon imports."""


def missing_package() -> BadRequest:
    """Return the error of a daemon that cannot start without the package."""
    return missing("zerotoolsd", NEEDED)


def why_no_daemon() -> str | None:
    """Return a sentence on the missing package and how to install it, or None if the daemon can
    start."""
    return str(missing_package()) if importlib.util.find_spec(NEEDED) is None else None
