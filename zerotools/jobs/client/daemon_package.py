"""Whether the daemon can be started with the Python that runs, which the extra `daemon` is for."""

from __future__ import annotations

import importlib.util

NEEDED = "aiohttp"
"""What only the daemon imports."""
INSTALL_DAEMON = "install it by: pip install 'zerotools[daemon]'"


def why_no_daemon() -> str | None:
    """What is missing here for a daemon, and what to do; None: nothing is."""
    for name in ("zerotoolsd", NEEDED):
        if importlib.util.find_spec(name) is None:
            return f"zerotoolsd needs {name}, which is not installed; {INSTALL_DAEMON}"
    return None
