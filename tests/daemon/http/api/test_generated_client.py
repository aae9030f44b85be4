"""Other programs can have a client made from the document, with types that hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.started import run
from tests.daemon.daemons import Daemon, make_job
from zerotools.jobs.jobfile.parse import given_of
from zerotoolsd.http.api.openapi.openapi_document import document

PROGRAM = Path(__file__).with_name("client_program.py")
MYPY = """
[mypy]
strict = true
# Of the generator's own file: httpx takes an exception there, and it passes on an object.
[mypy-zerotoolsd_client.client]
disable_error_code = arg-type
"""


def python(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` with these variables, too."""
    command, env = [sys.executable, *map(str, words)], {**os.environ, **variables}
    return run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the package `zerotoolsd_client`."""
    directory = tmp_path_factory.mktemp("client")
    config, source = directory / "generator.yaml", directory / "openapi.json"
    config.write_text("post_hooks: []\n")
    source.write_text(json.dumps(document()))
    done = python(
        *("-m", "openapi_python_client", "generate", "--fail-on-warning", "--meta", "none"),
        *("--config", config, "--path", source),
        *("--output-path", directory / "zerotoolsd_client"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_a_program_over_the_client_talks_to_a_daemon(generated: Path, daemon: Daemon) -> None:
    daemon.start()
    job_file = daemon.state.parent / "job.json"
    job_file.write_text(json.dumps(given_of(make_job("exit=0"))))
    done = python(PROGRAM, daemon.state / "api.sock", job_file, PYTHONPATH=str(generated))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert daemon.process is not None
    assert found == {
        "pid": daemon.process.pid,
        "listed": [1],
        "shown": ["fake", "on_hold", 2, 100],
        "cancelled": [202, "cancelled"],
        "again": [409, "conflict"],
    }


@pytest.mark.full
def test_the_client_and_the_program_have_types_that_hold(generated: Path) -> None:
    pytest.importorskip("mypy")
    config = generated / "mypy.ini"
    config.write_text(MYPY)
    done = python(
        *("-m", "mypy", "--config-file", config, "--cache-dir", generated / "cache"),
        *(generated / "zerotoolsd_client", PROGRAM),
        MYPYPATH=str(generated),
    )
    assert done.returncode == 0, done.stdout + done.stderr
