"""What an administrator changes of another user's job by the page for browsers, and by the command
line: the same is done, and the same is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.ports import free_port
from tests.daemon.daemons import CONFIG, daemon_in, make_job
from tests.daemon.http.web.pages import Browser
from tests.daemon.test_users import Machine
from tests.daemon.test_users_requests import ask
from tests.daemon.users.other_users import AS_ROOT, made_users, open_directory, open_interpreter
from zerotools.jobs.jobfile.parse import given_of
from zerotoolsd.users.account import Account

pytestmark = AS_ROOT


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """Bert is an administrator, and anna is not."""
    with open_directory() as place, made_users(2) as users:
        python = open_interpreter(place)
        config = f'{CONFIG}[users]\nadministrators = ["{users[1].name}"]\n'
        config += f"[web]\nport = {free_port()}\n"
        with daemon_in(place / "state", config) as daemon:
            daemon.python = python
            daemon.start()
            (daemon.state / "api.sock").chmod(0o666)
            yield Machine(daemon, users)


def page_of(machine: Machine, user: Account) -> Browser:
    """A browser that has followed a link which the socket gave to this user."""
    ((_, data, _),) = ask(machine, user, [["POST", "/v1/web/links", None, {}]])
    link = json.loads(data)
    browser = Browser(int(link["port"]))
    answer = browser.follow("/link/" + link["url"].rpartition("/")[2])
    browser.cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
    browser.secrets = answer.json
    return browser


def by_page(browser: Browser, path: str, body: Any, owner: int) -> tuple[int, Any]:
    answer = browser.post(path, body=body, owner=owner)
    return answer.status, answer.json


def by_socket(machine: Machine, user: Account, path: str, body: Any) -> tuple[int, Any]:
    ((status, data, _),) = ask(machine, user, [["POST", path, body, {}]])
    return status, json.loads(data)


def ended(machine: Machine, name: str) -> int:
    """The number of a job of anna's that has failed."""
    number = machine.submit(machine.anna, make_job("exit=64", name=name))
    machine.daemon.wait_for_end(number)
    return int(number)


def held(machine: Machine) -> int:
    """The number of a job of anna's that is held."""
    body = {"job": given_of(make_job("exit=0", name="waits")), "hold": True}
    return int(by_socket(machine, machine.anna, "/v1/jobs", body)[1]["id"])


def test_the_page_does_what_the_command_line_does(machine: Machine) -> None:
    anna, bert = machine.anna, machine.bert
    page = page_of(machine, bert)
    secret = machine.home(bert) / "berts.txt"
    secret.write_text("bert's words\n" * 50)
    secret.chmod(0o600)
    rows: tuple[tuple[str, Any, int], ...] = (
        ("priority", {"priority": 3}, 200),
        ("priority", {"priority": 99}, 400),
        ("edit", {"set": {"name": "renamed"}}, 200),
        ("edit", {"set": {"data": {"text": [str(secret)]}}}, 400),
        ("edit", {"set": {"output_dir": str(machine.home(bert) / "out")}}, 400),
        ("hold", {}, 200),
        ("retry", {"from_start": False}, 409),
        ("cancel", {}, 202),
    )
    jobs = held(machine), held(machine)
    for verb, body, status in rows:
        shown = by_page(page, f"/v1/jobs/{jobs[0]}/{verb}", body, anna.uid)
        said = by_socket(machine, bert, f"/v1/jobs/{jobs[1]}/{verb}", body)
        assert (shown[0], said[0]) == (status, status), (verb, shown, said)
        if status >= 400:
            both = [
                re.sub(rf"\b{job}\b", "N", str(each[1]["detail"]))
                for job, each in zip(jobs, (shown, said), strict=True)
            ]
            assert both[0] == both[1]
            assert "bert's words" not in both[0]
    for number in jobs:
        view = machine.daemon.client.job(number)
        assert (view["uid"], view["name"], view["priority"]) == (anna.uid, "renamed", 3)
        assert view["state"] == "cancelled"


def test_a_job_that_an_administrator_retries_is_its_owners(machine: Machine) -> None:
    over = ended(machine, "over")
    page = page_of(machine, machine.bert)
    path = f"/v1/jobs/{over}/retry"
    assert by_page(page, path, {"from_start": True}, machine.bert.uid)[0] == 403
    status, new = by_page(page, path, {"from_start": True}, machine.anna.uid)
    assert (status, new["uid"], new["user"]) == (201, machine.anna.uid, machine.anna.name)
    run_dir = machine.daemon.run_dir(new["id"])
    machine.daemon.wait_for_end(new["id"])
    assert {path.stat().st_uid for path in Path(run_dir).rglob("*")} == {machine.anna.uid}


def test_the_owner_is_refused_the_jobs_of_the_administrator(machine: Machine) -> None:
    number = machine.submit(machine.bert, make_job("exit=64", name="berts"))
    machine.daemon.wait_for_end(number)
    page = page_of(machine, machine.anna)
    status, said = by_page(page, f"/v1/jobs/{number}/retry", {}, machine.bert.uid)
    assert status == 403
    assert f"job {number} belongs to {machine.bert.name}" in said["detail"]
    assert page.get(f"/v1/jobs/{number}").json["masked"]
