"""Which job a command means: by number, by name, or the newest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import an_attempt
from zerotools.cli.main import build
from zerotools.jobs.client.daemon_client import DaemonClient


@pytest.fixture
def jobs(service: FakeService) -> FakeService:
    """Two that are over and one that waits of one name, and another one."""
    for state in ("failed", "succeeded", "queued"):
        service.add(state=state, name="tiny", attempts=(an_attempt(),))
    service.add(state="running", name="large", attempts=(an_attempt(),))
    return service


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("arguments", "number"), [(["2"], 2), (["tiny"], 3), (["large"], 4), ([], 4)]
)
def test_a_number_a_name_or_nothing_for_the_newest(
    zerotools: Command, arguments: list[str], number: int
) -> None:
    assert json.loads(zerotools("show", *arguments, "--json").out)["jobs"][0]["id"] == number


def test_a_name_of_several_that_are_not_over_asks_for_a_number(
    zerotools: Command, jobs: FakeService
) -> None:
    jobs.change(1, state="running")
    done = zerotools("cancel", "tiny")
    assert (done.status, done.err) == (
        2,
        "error: jobs 1, 3 have the name 'tiny'\nhint: give one of these numbers\n",
    )
    assert jobs.views[1].state == "running"


def test_cancel_takes_names_and_never_guesses(zerotools: Command, jobs: FakeService) -> None:
    assert zerotools("cancel", "large", "3").status == 0
    assert (jobs.views[4].state, jobs.views[3].state) == ("stopping", "stopping")
    assert zerotools("cancel").status == 2


def test_there_are_no_jobs(zerotools: Command) -> None:
    done = zerotools("logs")
    assert (done.status, "the queue has no jobs yet" in done.err) == (2, True)


@pytest.mark.usefixtures("jobs")
def test_names_and_numbers_are_completed(client: DaemonClient, tmp_path: Path) -> None:
    offered = completer(client.socket)
    assert offered("") == ["4", "3", "2", "1"]
    assert offered("l") == ["large"]
    assert completer(tmp_path / "no.sock")("") == []


def completer(socket: Path) -> Callable[[str], list[str]]:
    """What `zerotools show INCOMPLETE` offers."""

    def offered(incomplete: str) -> list[str]:
        group = build()
        command = group.get_command(click.Context(group), "show")
        assert command is not None
        context = click.Context(command)
        context.params["socket"] = socket
        argument = next(p for p in command.params if isinstance(p, click.Argument))
        return [item.value for item in argument.shell_complete(context, incomplete)]

    return offered


def test_a_name_with_a_zero_before_it_is_not_a_number(
    zerotools: Command, jobs: FakeService
) -> None:
    jobs.add(state="running", name="002", attempts=(an_attempt(),))
    assert zerotools("cancel", "002").status == 0
    assert (jobs.views[2].state, jobs.views[5].state) == ("succeeded", "stopping")
    assert "no job has the name '0'" in zerotools("show", "0").err


def test_whoever_sees_jobs_of_others_means_the_own_ones(
    zerotools: Command, service: FakeService
) -> None:
    service.add(state="queued", name="tiny", uid=os.getuid())
    service.add(state="queued", name="tiny", uid=os.getuid() + 1)
    assert json.loads(zerotools("show", "tiny", "--json").out)["jobs"][0]["id"] == 1
    assert "job 2 " not in zerotools("queue", "--named", "wide").out
    assert [
        job["id"] for job in json.loads(zerotools("queue", "--named", "tiny", "--json").out)["jobs"]
    ] == [*(1, 2)]
    assert zerotools("queue", "--named", "wide").out == (
        "no waiting or running job has the name wide\n"
    )
