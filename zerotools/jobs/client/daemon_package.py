"""Checks whether this Python has the packages of the daemon (extra `daemon`)."""

from __future__ import annotations

import importlib.util

NEEDED = "aiohttp"
"""The package that only the daemon imports."""
INSTALL_DAEMON = "install it by: pip install 'zerotools[daemon]'"


def why_no_daemon() -> str | None:
    """Return a sentence on the missing package and how to install it, or None if the daemon can
    start."""
    for name in ("zerotoolsd", NEEDED):
        if importlib.util.find_spec(name) is None:
            return f"zerotoolsd needs {name}, which is not installed; {INSTALL_DAEMON}"
    return None
