"""Runs the daemon: its signals, its log, and the order in which parts start and stop."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zerotools
from zerotools.cli.output.messages import print_error
from zerotools.core.counts_and_sizes import bytes_of
from zerotools.core.errors import EXIT_SYSTEM, BadFile, BadRequest, DaemonRefused, ZerotoolsError
from zerotools.jobs.client.daemon_address import default_socket, default_state_dir
from zerotools.sensors.excluded_and_preferred_gpus import GpuChoice
from zerotools.sensors.snapshot_source import SnapshotSource
from zerotoolsd.app import systemd
from zerotoolsd.app.command_line import make_parser
from zerotoolsd.app.state_directory import lock_state_dir
from zerotoolsd.attempts import recover_lost_attempts
from zerotoolsd.attempts.backends.choose_systemd_or_child import select_backend
from zerotoolsd.attempts.backends.spawn_supervisor import spawn_child
from zerotoolsd.attempts.backends.start_by_systemd_or_as_child import SpawnChild
from zerotoolsd.attempts.make_attempt_plan import LaunchSettings, RankCommand, trainer_command
from zerotoolsd.config.daemon_config import Config, load_config
from zerotoolsd.config.users_config import limits_of_all
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.file_checks import file_check_server
from zerotoolsd.file_checks.file_checker_pool import FileCheckers
from zerotoolsd.http.api.listening_sockets import open_socket, open_tcp, refuse_taken
from zerotoolsd.http.api.routes import make_app
from zerotoolsd.http.api.server import ApiServer
from zerotoolsd.http.web.page_server import WebPage
from zerotoolsd.queue.schema import set_aside
from zerotoolsd.queue.store import Store
from zerotoolsd.resources.leaked_gpu_memory import find_suspects
from zerotoolsd.resources.snapshot_thread import SnapshotCache
from zerotoolsd.service.admission import run_file_checks
from zerotoolsd.service.admission.interpreter_check import check_interpreter
from zerotoolsd.service.admission.run_rank_checks import run_rank_checks
from zerotoolsd.service.answer_requests import JobRequests
from zerotoolsd.service.submission import LOOKS, InterpreterCheck, Rehearsal
from zerotoolsd.service.user_lookup import UserDirectory
from zerotoolsd.supervisor.transient_os_errors import error_text
from zerotoolsd.users.open_as_user import drop_groups, let_through
from zerotoolsd.users.rights import Rights
from zerotoolsd.users.served_users import ServedUsers, why_alone
from zerotoolsd.users.user_limits import LimitsOfUsers

LOCK_SECONDS = 30.0
"""Seconds that a service waits for the previous daemon to end; systemd allows 90 to start."""
LOCK_PAUSE_SECONDS = 0.2
STATE_MODE = 0o711
"""Mode of a state directory that contains directories of users: users can reach these, but not list
them.
"""
ALL_LOOKS = {**LOOKS, find_suspects.__name__: find_suspects}

log = logging.getLogger("zerotoolsd")


def main(
    arguments: Sequence[str] | None = None,
    *,
    command: RankCommand = trainer_command,
    check_python: InterpreterCheck = check_interpreter,
    rehearse: Rehearsal = run_rank_checks,
    spawn: SpawnChild = spawn_child,
) -> int:
    """Run the daemon until SIGTERM or SIGINT, and return the exit status. Jobs keep running after
    that.

    `command` returns the command that starts the ranks. `check_python` and `rehearse` run checks
    with the Python interpreter of a job. `spawn` starts supervisors that are child processes.
    """
    options = make_parser().parse_args(arguments)
    start_logging(debug=options.debug)
    # Start it before a lock, database, loop or thread exists, because it would get a copy.
    way = file_check_server.start_check_server(ALL_LOOKS, run_file_checks.NEEDS)
    try:
        asyncio.run(_serve(options, command, check_python, rehearse, way, spawn))
    except ZerotoolsError as error:
        if options.debug:
            raise
        print_error(str(error))
        return error.exit_code
    except MemoryError:
        if options.debug:
            raise
        print_error("no memory is left: raise the memory limit of the service, or queue fewer jobs")
        return EXIT_SYSTEM
    except (OSError, sqlite3.OperationalError) as error:
        # A transient error (disk, descriptors): the service manager must not take it for permanent.
        if options.debug:
            raise
        why = error_text(error) if isinstance(error, OSError) else str(error)
        print_error(
            f"the operating system refuses an operation: {why}; start with --debug to see where"
        )
        return EXIT_SYSTEM
    finally:
        way.close()
    return 0


async def _serve(
    options: argparse.Namespace,
    command: RankCommand,
    check_python: InterpreterCheck,
    rehearse: Rehearsal,
    nursery_way: socket.socket,
    spawn: SpawnChild,
) -> None:
    lookers = FileCheckers(nursery_way, ALL_LOOKS)
    config = load_config(options.config)
    way = select_backend(config.launch.by)
    users = _served_users(config)
    state_dir = (options.state_dir or default_state_dir()).absolute()
    stop = _stop_on_signals()
    umask = os.umask(0o077)
    path = _socket_path(options, state_dir)
    inherited = systemd.inherited_socket()
    if inherited is None and not state_dir.exists():
        # Check this before a directory is made for nothing.
        refuse_taken(path)
    lock = await _lock(state_dir, stop)
    if options.rebuild:
        _set_aside_if_damaged(state_dir)
    store = Store(state_dir, rebuild=options.rebuild)
    machine = SnapshotCache(
        SnapshotSource(), choice=GpuChoice(config.gpus.exclude, config.gpus.prefer)
    )
    try:
        recover_lost_attempts.add_missing_from_runs(state_dir, store, time.time())
        dispatcher = Dispatcher(
            state_dir=state_dir,
            store=store,
            machine=machine,
            ask=lookers.ask,
            launch=LaunchSettings(
                config=config,
                command=command,
                umask=umask,
                socket=path,
                backend=way,
                spawn=spawn,
            ),
            users=users,
        )
        if users.alone is None:
            let_through(state_dir, STATE_MODE)
            log.info("runs jobs of all users, each as the user who submitted it")
        log.info("supervisors of jobs are %s", way.why)
        tcp = open_tcp(config.api)
        listening = inherited or _listen(path)
        service = JobRequests(
            dispatcher,
            check_python=check_python,
            rehearse=rehearse,
            ask=lookers.ask,
        )
        rights = Rights(config.users.administrators, allow=config.users.allow)
        people = UserDirectory(lookers.ask)
        page = WebPage(service, config.web, state_dir, rights, people)
        api = make_app(service, None if tcp is None else tcp.tokens, rights, people, page)
        server = ApiServer(
            api, listening, None if inherited else path, tcp=tcp, state_dir=state_dir
        )
        await _run(server, page, dispatcher, stop)
    finally:
        await lookers.close()
        machine.close()
        store.close()
        for each in lock:
            os.close(each)


def _served_users(config: Config) -> ServedUsers:
    """Return the users that this daemon serves, and drop the daemon's supplementary groups."""
    drop_groups()
    limits = {
        "processes": config.users.processes,
        "open_files": config.users.open_files,
        "job_processes": config.limits.job_processes,
        "job_memory": None if (most := config.limits.job_memory) is None else bytes_of(most),
    }
    quotas = LimitsOfUsers(limits_of_all(config.users), config.users.limits)
    return ServedUsers(own=os.geteuid(), alone=why_alone(), limits=limits, quotas=quotas)


async def _lock(state_dir: Path, stop: asyncio.Event) -> tuple[int, ...]:
    """Lock the state directory. Return the file descriptors that hold the lock.

    If another daemon holds the lock, raise DaemonRefused. Under systemd, first wait up to
    LOCK_SECONDS for the lock, because a killed daemon can hang in the kernel. Raises BadRequest if
    the directory cannot be made.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (LOCK_SECONDS if systemd.notify("STATUS=starts") else 0.0)
    while True:
        try:
            return lock_state_dir(state_dir)
        except DaemonRefused as error:
            if stop.is_set() or loop.time() >= deadline:
                raise
            systemd.notify(f"STATUS={error}")
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), LOCK_PAUSE_SECONDS)


def _set_aside_if_damaged(state_dir: Path) -> None:
    try:
        Store(state_dir, rebuild=True).close()
    except BadFile as error:
        moved = set_aside(state_dir, time.strftime("%Y%m%d-%H%M%S"))
        log.warning("%s; kept as %s", error, ", ".join(map(str, moved)))


def _listen(path: Path) -> socket.socket:
    try:
        return open_socket(path)
    except OSError as error:
        raise BadRequest(
            f"cannot listen at {path}: {error.strerror}; name another path with --socket"
        ) from None


def _socket_path(options: argparse.Namespace, state_dir: Path) -> Path:
    if options.socket is not None:
        return Path(options.socket).absolute()
    if options.state_dir is not None and "ZEROTOOLS_SOCKET" not in os.environ:
        return state_dir / "api.sock"
    return default_socket()


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    return stop


async def _run(
    server: ApiServer, page: WebPage, dispatcher: Dispatcher, stop: asyncio.Event
) -> None:
    running = asyncio.create_task(dispatcher.run(stop))

    def is_healthy() -> bool:
        return not running.done() and dispatcher.is_healthy(time.monotonic())

    alive = asyncio.create_task(systemd.feed_watchdog(is_healthy))
    try:
        await server.start()
        await page.start()
        # Imported objects stay: scanning them again takes 20 ms, in the middle of a request.
        gc.collect()
        gc.freeze()
        systemd.notify("READY=1")
        log.info("zerotoolsd %s listens at %s", zerotools.__version__, server.address)
        await running
    finally:
        systemd.notify("STOPPING=1")
        alive.cancel()
        await page.close()
        await server.close()


WINDOW_SECONDS = 60.0
MOST = 20
"""The largest number of warnings and errors that are logged from one line of code in a time
window.
"""


@dataclass
class _Seen:
    began: float
    count: int = 0


class LogLimit(logging.Filter):
    """Passes at most `MOST` warnings or errors from each line of code in a time window, and counts
    the messages that it drops.

    The first message of the next window reports this count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, int], _Seen] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now, key = self._clock(), (record.pathname, record.lineno)
        seen = self._seen.setdefault(key, _Seen(now))
        if now - seen.began >= WINDOW_SECONDS:
            if seen.count > MOST:
                left_out = f"{seen.count - MOST:,} more messages like this were left out"
                record.msg, record.args = f"{record.getMessage()} ({left_out})", ()
            self._seen[key] = seen = _Seen(now)
        seen.count += 1
        return seen.count <= MOST


def start_logging(*, debug: bool) -> None:
    """Begin to log to stderr; with `debug`, also debug messages."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(LogLimit())
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler])
