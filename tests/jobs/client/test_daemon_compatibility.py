"""What a daemon needs is looked for where the client runs."""

from __future__ import annotations

import subprocess
import sys

from zerotools.jobs.client.daemon_compatibility import why_no_daemon

ABSENT = """
import sys
from zerotools.jobs.client import daemon_compatibility
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
print(daemon_compatibility.why_no_daemon())
"""


def test_nothing_is_missing_where_tests_run() -> None:
    assert why_no_daemon() is None


def test_what_is_missing_is_said_with_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ABSENT], capture_output=True, text=True, check=True, timeout=60
    )
    said = done.stdout.strip()
    assert said.startswith("zerotoolsd needs aiohttp, which is not installed; run ")
    assert said.endswith(" 'aiohttp>=3.9'")
