"""Processes that users started by hand, watched by a daemon of root: each its own user's alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.started import Started
from tests.daemon.daemons import CONFIG, daemon_in
from tests.daemon.test_users import Machine
from tests.daemon.users.other_users import AS_ROOT, made_users, open_directory, open_interpreter
from tests.daemon.waiting import wait_for
from zerotoolsd.users.account import Account

pytestmark = AS_ROOT
ADOPT = """
import json, sys
from pathlib import Path
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
try:
    print(json.dumps(DaemonClient(Path(sys.argv[1])).adopt(json.load(sys.stdin))["job"]["id"]))
except ZerotoolsError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with open_directory() as place, made_users(2) as users:
        python = open_interpreter(place)
        config = CONFIG.replace("grace_seconds = 20.0", "grace_seconds = 2.0")
        with daemon_in(place / "state", config) as daemon:
            daemon.python = python
            daemon.start()
            yield Machine(daemon, users)


@contextmanager
def training_of(user: Account) -> Iterator[Started]:
    child = Started(["/bin/sleep", "1000"], user=user.uid, group=user.gid, extra_groups=[], cwd="/")
    try:
        yield child
    finally:
        child.end()


def adopt(machine: Machine, user: Account, pid: int, **more: Any) -> Any:
    """The number of the job, or why it was refused."""
    socket = machine.daemon.state / "api.sock"
    socket.chmod(0o666)
    said = json.dumps({"pid": pid, **more})
    answer = machine.as_user(user, machine.daemon.python, "-c", ADOPT, socket, said=said)
    return json.loads(answer)


def log_of(machine: Machine, number: int) -> str:
    return machine.daemon.client.logs(number).data.decode()


def test_its_user_has_it_watched_and_ended(machine: Machine) -> None:
    with training_of(machine.anna) as child:
        number = adopt(machine, machine.anna, child.pid, time_limit=1)
        job = machine.daemon.wait_for_end(number)
        assert (job["state"], job["uid"]) == ("stopped", machine.anna.uid), job
        assert child.wait(20) == -15
        owners = {path.stat().st_uid for path in machine.daemon.run_dir(number).rglob("*")}
        assert owners == {machine.anna.uid}


def test_nobody_else_may_and_root_neither(machine: Machine) -> None:
    with training_of(machine.anna) as child:
        said = f"process {child.pid} (sleep) belongs to uid {machine.anna.uid}, and you are uid "
        assert str(adopt(machine, machine.bert, child.pid)).startswith(said)
        with pytest.raises(Exception, match=said.replace("(", r"\(").replace(")", r"\)")):
            machine.daemon.client.adopt({"pid": child.pid})
        assert child.is_running()


def test_who_names_a_process_of_another_in_a_job_file_ends_nothing(machine: Machine) -> None:
    """The keys are anybody's to write; the watcher has its own user's rights alone."""
    with training_of(machine.anna) as child:
        hers = adopt(machine, machine.anna, child.pid)
        wait_for(lambda: "watching process" in log_of(machine, hers), "it to be watched")
        adopted = machine.daemon.client.job(hers)["spec"]["script"]["adopted"]
        forged = {
            "name": "forged",
            "engine": "script",
            "device": "cpu",
            "max_restarts": 0,
            "time_limit": 1,
            "script": {"command": ["sleep"], "directory": "/", "adopted": adopted},
        }
        said = machine.submit_tree(machine.bert, forged)
        assert said == f"script.adopted: process {child.pid} belongs to another user"
        assert child.is_running()
        machine.daemon.client.cancel(hers)
        assert machine.daemon.wait_for_end(hers)["state"] == "cancelled"
        assert child.is_running()
