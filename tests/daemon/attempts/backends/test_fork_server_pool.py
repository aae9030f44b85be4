"""Which servers there are, and what an attempt is told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from tests.daemon.attempts.backends.test_fork_server import a_plan
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, Running, running
from tests.daemon.made_attempts import FAKE_RANK, an_attempt_row
from tests.daemon.waiting import wait_async
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.attempts.backends import fork_server
from zerotoolsd.attempts.backends.choose_systemd_or_child import CHILDREN
from zerotoolsd.attempts.backends.fork_server import (
    ForkServer,
    NoServer,
    ServerKind,
    WarmSupervisor,
)
from zerotoolsd.attempts.backends.fork_server_pool import AGAIN_SECONDS, ForkServerPool
from zerotoolsd.config.config_tables import WarmStartConfig
from zerotoolsd.queue.rows import AttemptRow

ON = WarmStartConfig(enabled=True, servers=2, idle="10m")


@dataclass
class FakeServer:
    """As `ForkServer`; `trouble` is what becomes of it."""

    kind: ServerKind
    used: float
    bytes: int | None = 1000
    trouble: str | None = None
    pid: int = 4711
    jobs: int = 0
    ended: bool = False

    def is_ready(self) -> bool:
        if self.trouble is not None:
            raise NoServer(self.trouble)
        return self.bytes is not None

    def start(self, attempt: AttemptRow) -> WarmSupervisor:
        return WarmSupervisor(1, -1)

    def end(self) -> None:
        self.ended = True


@dataclass
class Story:
    """Servers of this daemon, at a time that the test says."""

    config: WarmStartConfig = ON
    now: float = 1000.0
    made: list[FakeServer] = field(default_factory=list)
    loading: bool = False

    def __post_init__(self) -> None:
        self.servers = ForkServerPool(self.config, CHILDREN, self._make, lambda: self.now)

    def _make(self, kind: ServerKind, now: float) -> ForkServer:
        self.made.append(FakeServer(kind, now))
        return cast(ForkServer, self.made[-1])

    def start(self, **env: str) -> str | None:
        """How an attempt with this environment is started."""
        found, how = self.servers.start(an_attempt_row(), a_plan(**env), make_job(""), None)
        assert (found is not None) == (how == "started warm")
        return how

    def tend(self) -> None:
        self.servers.tend(lambda attempt: self.loading)


def test_nothing_is_made_or_said_where_it_is_off() -> None:
    story = Story(WarmStartConfig())
    assert story.start() is None
    story.tend()
    assert not story.made


def test_a_server_is_made_when_the_first_attempt_loads_no_more() -> None:
    story = Story(loading=True)
    assert story.start() == "started cold: no fork server runs for its environment yet"
    story.tend()
    assert not story.made
    story.loading = False
    story.tend()
    story.made[0].bytes = None
    assert story.start() == "started cold: its fork server still imports"
    story.made[0].bytes = 1000
    assert story.start() == "started warm"
    assert len(story.made) == 1


def test_one_that_fails_is_ended_and_made_again_later() -> None:
    story = Story()
    story.start()
    story.tend()
    story.made[0].trouble = "importing started threads"
    assert story.start() == "started cold: importing started threads"
    assert story.made[0].ended
    story.tend()
    assert len(story.made) == 1
    assert story.servers.to_json()["trouble"] == "importing started threads"
    story.now += AGAIN_SECONDS
    story.tend()
    assert story.start() == "started warm"


def test_the_one_that_was_used_longest_ago_ends_for_another() -> None:
    story = Story()
    for word in ("a", "b"):
        story.start(WORD=word)
        story.tend()
        story.now += 1
    story.start(WORD="a")
    story.start(WORD="c")
    story.tend()
    assert [server.ended for server in story.made] == [False, True, False]


def test_one_that_nobody_uses_ends() -> None:
    story = Story()
    story.start()
    story.tend()
    story.now += 599
    story.tend()
    assert not story.made[0].ended
    story.now += 2
    story.tend()
    assert story.made[0].ended


def test_one_that_holds_too_much_memory_ends() -> None:
    story = Story(replace(ON, memory="1GiB"))
    story.start()
    story.tend()
    story.made[0].bytes = 2**31
    story.tend()
    assert story.made[0].ended
    held = "its fork server held 2147483648 bytes, more than warm_start.memory = 1GiB"
    assert story.start() == f"started cold: {held}"


def test_all_end_with_the_daemon() -> None:
    story = Story()
    story.start()
    story.tend()
    story.servers.close()
    assert story.made[0].ended


def fake_command(spec: JobSpec, run_dir: Path) -> tuple[str, ...]:
    return (sys.executable, "-P", str(FAKE_RANK), "--run-dir", str(run_dir))


async def how_started(it: Running, job: int) -> str | None:
    await it.reach(job, "succeeded")
    events = it.engine.store.events_of(job, 20)
    return next(event.why for event in events if event.kind == "started")


@pytest.mark.timeout(120)
def test_jobs_of_a_daemon_start_cold_then_warm_and_cold_again_without_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "COMMON", ())
    monkeypatch.setattr(fork_server, "MODULES", {"torch": ("json",)})

    async def story() -> None:
        config = replace(CONFIG, warm_start=ON)
        async with running(tmp_path / "state", config=config, command=fake_command) as it:

            async def submit() -> int:
                spec = make_job("steps=1 exit=0", ranks=1)
                job, _ = await it.service.submit(spec, uid=0, idempotency_key=None)
                return int(job.id)

            async def a_server() -> int | None:
                found = it.engine.warm.to_json()["servers"]
                return found[0]["pid"] if found and found[0]["ready"] else None

            none = "started cold: no fork server runs for its environment yet"
            assert await how_started(it, await submit()) == none
            pid = await wait_async(a_server, "a fork server to be ready")
            assert await how_started(it, await submit()) == "started warm"
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            said = await how_started(it, await submit())
            assert said is not None
            assert said.startswith("started cold: its fork server")

    asyncio.run(story())
