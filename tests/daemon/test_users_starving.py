"""What one user of a daemon of root takes from the others by having none left: of a disk, of
connections, of the daemon's time. One daemon for all; bert takes, anna works."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from harness.started import Started
from tests.daemon.daemons import CONFIG, daemon_in, make_job
from tests.daemon.small_disks import mounted
from tests.daemon.test_users import Machine
from tests.daemon.test_users_requests import ASK
from tests.daemon.users.other_users import AS_ROOT, made_users, open_directory, open_interpreter
from tests.matrices import FULL
from zerotools.jobs.jobfile.parse import given_of

pytestmark = AS_ROOT
ROUNDS = 8
COUNT = 600 if FULL else 150
"""Of connections, each of which takes time of the daemon."""
LONGEST_SECONDS = 30.0
"""Of one request of anna's; here all take less than one."""
TIMED_ASK = (
    ASK.replace("asked = http", "began = time.monotonic(); asked = http")
    .replace("dict(got.headers)]", "{'seconds': time.monotonic() - began}]")
    .replace("import http", "import time, http")
)
TAKE = """
import socket, sys
links, refused = [], 0
def opened(data):
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(20)
    try:
        link.connect(sys.argv[1])
        link.sendall(data)
    except OSError:
        pass
    links.append(link)
for number in range(int(sys.argv[2])):
    opened((
        b"",
        b"GET /v1/jobs HTTP/1.1\\r\\nHost: x\\r\\nX-A: ",
        b"GET /v1/events/stream HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n",
        b"GET /v1/jobs?limit=1000 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" * 10,
        b"GET / HTTP/1.1\\r\\nX-B: " + b"b" * 100_000,
        b"POST /v1/jobs HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 1000000\\r\\n\\r\\n{",
    )[number % 6])
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with open_directory() as place, made_users(2) as users:
        python = open_interpreter(place)
        with daemon_in(place / "state", CONFIG) as daemon:
            daemon.python = python
            daemon.start()
            (daemon.state / "api.sock").chmod(0o666)
            yield Machine(daemon, users)


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "inodes"])
def test_a_full_disk_of_one_user_stops_that_users_jobs_alone(
    machine: Machine, *, blocks: bool
) -> None:
    path = machine.home(machine.bert) / f"disk-{blocks}"
    with mounted(path) as disk:
        if disk is None:
            pytest.skip("no file system may be mounted here")
        os.chown(path, machine.bert.uid, machine.bert.gid)
        job = make_job("steps=2 save=1", output_dir=str(path / "out"))
        disk.fill() if blocks else disk.take_inodes()
        berts = machine.submit(machine.bert, job)
        annas = machine.submit(machine.anna, make_job("steps=1 save=1"))
        assert machine.daemon.wait_for_end(annas)["state"] == "succeeded"
        assert machine.daemon.wait_for_end(berts)["state"] == "failed"
        log = machine.daemon.run_dir(berts) / "rank-0.log"
        assert "No space left on device" in log.read_text()
        disk.free()


def test_hundreds_of_connections_of_one_user_leave_the_others_theirs(machine: Machine) -> None:
    socket = machine.daemon.state / "api.sock"
    taking = Started(
        [str(machine.daemon.python), "-c", TAKE, str(socket), str(COUNT)],
        user=machine.bert.uid,
        group=machine.bert.gid,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
    )
    try:
        assert taking.stdout.readline() == b"taken\n"
        post = {"job": given_of(make_job("exit=0"))}
        rows = [["GET", "/v1/jobs", None, {}], ["POST", "/v1/jobs", post, {}]] * ROUNDS
        answers, seconds = timed(machine, rows)
        assert [status for status, _, _ in answers] == [200, 201] * ROUNDS
        assert seconds[-1] < LONGEST_SECONDS
        last = json.loads(answers[-1][1])["id"]
        assert machine.daemon.wait_for_end(last)["state"] == "succeeded"
        assert taking.is_running()
    finally:
        taking.end()


def timed(machine: Machine, rows: list[list[Any]]) -> tuple[list[Any], list[float]]:
    """What anna is answered, and the seconds that her requests took, the least first."""
    socket = machine.daemon.state / "api.sock"
    said = machine.as_user(
        machine.anna, machine.daemon.python, "-c", TIMED_ASK, socket, said=json.dumps(rows)
    )
    answers = json.loads(said)
    return answers, sorted(answer[2]["seconds"] for answer in answers)
