"""zerotoolsd whose ranks are `fake_rank.py`, under an interpreter of which nothing is asked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.admission.interpreter import Needs
from zerotoolsd.app import main

FAKE_RANK = Path(__file__).with_name("fake_rank.py")


def command(spec: JobSpec, run_dir: Path) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", str(FAKE_RANK), "--run-dir", str(run_dir))


async def check_python(python: str, env: Mapping[str, str], needs: Needs, user: object) -> None:
    """Any interpreter will do."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], command=command, check_python=check_python))
