"""A fork server that does what it is for, and every way in which it does not."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.attempts.warm_start.fork_servers import fork_server, prepared, ready
from tests.daemon.daemons import make_job
from tests.daemon.made_attempts import (
    an_attempt_row,
    is_alive,
    make_attempt,
    own_token,
    progress_of,
    started,
)
from tests.daemon.waiting import wait_for
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.attempts.backends import fork_server as servers
from zerotoolsd.attempts.backends.choose_systemd_or_child import CHILDREN, LaunchBackend
from zerotoolsd.attempts.backends.fork_server import ForkServer, NoServer, kind_of, why_cold
from zerotoolsd.supervisor.attempt_plan import Plan
from zerotoolsd.supervisor.durable_files import read_json
from zerotoolsd.supervisor.procfs import read_process
from zerotoolsd.supervisor.set_numa_binding import RankBinding
from zerotoolsd.users.account import Account
from zerotoolsd.users.start_as_submitter import JobUser


def has_token(pid: int) -> bool:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return f"ZEROTOOLS_TOKEN={own_token()}".encode() in variables


def run(server: ForkServer, run_dir: Path, fake: str, **env: str) -> Path:
    """Start an attempt of it; its directory, once it has ended."""
    keeper = server.start(prepared(run_dir, fake, **env))
    wait_for(lambda: bool(select.select([keeper.pidfd], [], [], 0)[0]), "the keeper to end")
    keeper.wait()
    return run_dir


def test_p2_an_attempt_has_the_processes_that_it_has_without_a_server(tmp_path: Path) -> None:
    with fork_server("json") as server:
        keeper = ready(server).start(prepared(tmp_path / "run", "release", WORD="the rank's"))
        record = started(tmp_path / "run")
        ranks = [line["pid"] for line in record["ranks"]]
        supervisor = read_process(record["pid"])
        assert supervisor is not None
        assert supervisor.parent == record["keeper"]["pid"] == keeper.pid
        for pid in ranks:
            rank = read_process(pid)
            assert rank is not None
            assert rank.parent == record["pid"]
            # By its token a process of the attempt is known, if nobody else is left to ask.
            wait_for(partial(has_token, pid), "the rank to be known by its token")
        assert os.getsid(keeper.pid) == keeper.pid
        # It needs the server no more.
        server.end()
        assert all(map(is_alive, (keeper.pid, record["pid"], *ranks)))
        (tmp_path / "run" / "release").touch()
        wait_for(lambda: bool(select.select([keeper.pidfd], [], [], 0)[0]), "the keeper to end")
        keeper.close()
    ended = read_json(tmp_path / "run" / "exit.json")
    assert ended is not None
    assert ended["outcome"] == "finished"


def test_a_forked_rank_keeps_to_its_processors_as_an_executed_one_does(tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    argv = (sys.executable, "-P", str(Path(__file__).parents[2] / "bound_program.py"))
    binding = RankBinding(str(cpu))
    keys: dict[str, Any] = {"argv": argv, "world_size": 1, "bindings": (binding,)}
    env = {"PATH": os.environ["PATH"], "ZEROTOOLS_TOKEN": own_token()}
    run_dir = make_attempt(tmp_path / "run", "", env=env, **keys)
    with fork_server("json") as server:
        keeper = ready(server).start(an_attempt_row(token=own_token(), run_dir=str(run_dir)))
        wait_for(lambda: bool(select.select([keeper.pidfd], [], [], 0)[0]), "the keeper to end")
        keeper.wait()
        # The server itself, of which others are forked, is free.
        assert os.sched_getaffinity(server.pid) == os.sched_getaffinity(0)
    told = json.loads((run_dir / "rank-0.log").read_text())
    assert {tuple(told[who]["cpus"]) for who in ("itself", "thread", "program")} == {(cpu,)}


def test_ranks_that_lose_their_supervisor_end(tmp_path: Path) -> None:
    with fork_server() as server:
        keeper = ready(server).start(prepared(tmp_path / "run", "steps=1 hang"))
        record = started(tmp_path / "run")
        wait_for(lambda: len(progress_of(tmp_path / "run")) == len(record["ranks"]), "the ranks")
        os.kill(record["pid"], signal.SIGKILL)
        wait_for(lambda: bool(select.select([keeper.pidfd], [], [], 0)[0]), "the keeper to end")
        keeper.close()
    assert not any(is_alive(line["pid"]) for line in record["ranks"])
    ended = read_json(tmp_path / "run" / "exit.json")
    assert ended is not None
    assert ended["outcome"] == "lost"


@pytest.mark.parametrize(("fake", "code"), [("exit=7", 7), ("error=x exit=1", 1)])
def test_the_end_of_a_rank_is_that_of_its_program(tmp_path: Path, fake: str, code: int) -> None:
    with fork_server() as server:
        run_dir = run(ready(server), tmp_path / "run", fake)
    ended = read_json(run_dir / "exit.json")
    assert ended is not None
    assert ended["ranks"][0]["exit_code"] == code


def test_one_server_starts_many(tmp_path: Path) -> None:
    with fork_server() as server:
        for number in range(3):
            run(ready(server), tmp_path / str(number), "exit=0")
        assert server.jobs == 3


def written(directory: Path, text: str) -> str:
    """A module of a user's, for PYTHONPATH."""
    directory.mkdir(exist_ok=True)
    path = directory / "a_module_of_mine.py"
    path.write_text(text)
    os.utime(path, (1e9, 1e9))
    return str(directory)


def test_what_was_imported_and_has_changed_ends_it(tmp_path: Path) -> None:
    place = written(tmp_path / "modules", "")
    with fork_server("a_module_of_mine", PYTHONPATH=place) as server:
        run(ready(server), tmp_path / "before", "exit=0")
        (tmp_path / "modules" / "a_module_of_mine.py").write_text("upgraded = True")
        with pytest.raises(NoServer, match=r"a_module_of_mine\.py has changed since it was import"):
            server.start(prepared(tmp_path / "after", "exit=0"))
    assert not (tmp_path / "after" / "run.json").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "import threading, time\n"
            "threading.Thread(target=lambda: time.sleep(600), daemon=True).start()\n",
            r"importing started threads \(.+, .+\), which a fork would lack",
        ),
        ("raise ImportError('too old')\n", "cannot be imported: ImportError: too old"),
        ("import os\nos._exit(3)\n", "its fork server ended with status 3"),
        ("import os\nos.kill(os.getpid(), 11)\n", "its fork server was ended by signal 11"),
    ],
)
def test_modules_with_which_a_fork_is_not_safe_are_refused(
    tmp_path: Path, text: str, why: str
) -> None:
    place = written(tmp_path / "modules", text)
    with (
        fork_server("a_module_of_mine", PYTHONPATH=place) as server,
        pytest.raises(NoServer, match=why),
    ):
        ready(server)


def test_a_module_that_is_written_while_it_is_imported_is_not_trusted(tmp_path: Path) -> None:
    place = written(tmp_path / "modules", "import os, time\nos.utime(__file__)\n")
    with (
        fork_server("a_module_of_mine", PYTHONPATH=place) as server,
        pytest.raises(NoServer, match=r"a_module_of_mine\.py has changed while it was imported"),
    ):
        ready(server)


def test_a_server_that_was_killed_says_so(tmp_path: Path) -> None:
    with fork_server() as server:
        os.kill(ready(server).pid, signal.SIGKILL)
        with pytest.raises(NoServer, match="was ended by signal 9"):
            server.start(prepared(tmp_path / "run", "exit=0"))


def test_a_server_that_was_killed_with_a_request_unread_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel resets the link then: it does not only end it."""
    with fork_server() as server:
        server_pid = ready(server).pid
        os.kill(server_pid, signal.SIGSTOP)
        send = socket.send_fds

        def send_and_kill(*args: Any) -> int:
            sent = send(*args)
            os.kill(server_pid, signal.SIGKILL)
            return sent

        monkeypatch.setattr(socket, "send_fds", send_and_kill)
        with pytest.raises(NoServer, match="was ended by signal 9"):
            server.start(prepared(tmp_path / "run", "exit=0"))


def test_a_server_that_does_not_answer_delays_nothing_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "ANSWER_SECONDS", 0.05)
    with fork_server() as server:
        os.kill(ready(server).pid, signal.SIGSTOP)
        with pytest.raises(NoServer, match=r"has not answered within 0\.05 s"):
            server.start(prepared(tmp_path / "run", "exit=0"))


def test_a_server_ends_with_its_daemon(tmp_path: Path) -> None:
    with fork_server() as server:
        pid = ready(server).pid
        server._link.close()
        wait_for(lambda: not is_alive(pid), "the server to end")


SYSTEMD = LaunchBackend(program="/usr/bin/systemd-run", why="started by systemd")
USER = JobUser(account=Account(uid=1234, gid=1234, name="ann", home="/home/ann", groups=()))
ENV = {
    "PATH": "/usr/bin",
    "OMP_NUM_THREADS": "4",
    "CUDA_VISIBLE_DEVICES": "GPU-1",
    "ZEROTOOLS_TOKEN": "f" * 32,
    "ZEROTOOLS_RUN_DIR": "/state/jobs/1/attempt-1",
}


def a_plan(**env: str) -> Plan:
    return Plan(
        job_id=1,
        attempt=1,
        token="f" * 32,
        argv=("/usr/bin/python3", "-P", "/trainer/entry.py", "--run-dir", "/run"),
        env={**ENV, **env},
        cwd="/",
        umask=0o022,
        world_size=1,
        gpu_uuids=(),
        grace_seconds=1.0,
        straggler_seconds=1.0,
        log_limit_bytes=1,
    )


def compiled() -> JobSpec:
    return make_job("", train={"steps": 1, "batch_size": 4, "compile": True})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"spec": compiled()}, "train.compile starts processes and threads"),
        ({"user": USER}, "it is a job of another user than the daemon's"),
        ({"way": SYSTEMD}, "supervisors are started by systemd, each in its own systemd unit"),
        (
            {"plan": a_plan(LD_PRELOAD="/lib/trace.so")},
            "LD_PRELOAD is set, and its library may not work after a fork",
        ),
        (
            {"plan": a_plan(OMP_PROC_BIND="close")},
            "OMP_PROC_BIND is set, so OpenMP would bind all forks to the same processors",
        ),
        (
            {"plan": a_plan(GOMP_CPU_AFFINITY="0-3")},
            "GOMP_CPU_AFFINITY is set, so OpenMP would bind all forks to the same processors",
        ),
        ({"plan": a_plan(OMP_PROC_BIND="FALSE", OMP_PLACES="")}, None),
        ({"plan": a_plan(OMP_NUM_THREADS="2,1")}, 'OMP_NUM_THREADS = "2,1" is not a single number'),
        (
            {"plan": a_plan()._replace(argv=("/usr/bin/python3", "-m", "mine"))},
            "its command does not run the trainer",
        ),
        ({"spec": replace(make_job(""), engine="script")}, "its program comes from the user"),
        (
            {"spec": replace(make_job(""), engine="deepspeed")},
            "engine deepspeed may not work after a fork",
        ),
    ],
)
def test_what_is_not_safe_starts_cold_and_says_why(
    changes: dict[str, Any], why: str | None
) -> None:
    usual = {"plan": a_plan(), "spec": make_job(""), "way": CHILDREN, "user": None}
    assert why_cold(**{**usual, **changes}) == why


def test_attempts_that_differ_in_what_no_import_reads_share_a_server() -> None:
    other = a_plan(ZEROTOOLS_TOKEN="0" * 32, CUDA_VISIBLE_DEVICES="GPU-2", OMP_NUM_THREADS="1")
    assert kind_of(other, make_job("")) == kind_of(a_plan(), make_job(""))


@pytest.mark.parametrize("name", ["HF_HOME", "PYTHONPATH", "OMP_PROC_BIND", "LANG", "ANYTHING"])
def test_any_other_variable_makes_another_server(name: str) -> None:
    kind, other = kind_of(a_plan(), make_job("")), kind_of(a_plan(**{name: "x"}), make_job(""))
    assert kind != other
    assert kind.name != other.name


def test_a_server_is_executed_with_one_thread_and_room_for_a_token() -> None:
    env = dict(kind_of(a_plan(), make_job("")).env)
    names = env.keys() - {"JE_ARROW_MALLOC_CONF"}
    assert {name: env[name] for name in names} == {
        "PATH": "/usr/bin",
        "OMP_NUM_THREADS": "1",
        "ZEROTOOLS_TOKEN": "-" * 32,
    }


def test_importing_arrow_as_pandas_does_starts_no_thread_in_a_server() -> None:
    pytest.importorskip("pyarrow")
    env = dict(kind_of(a_plan(), make_job("")).env)
    program = "import os, pyarrow; print(os.listdir('/proc/self/task') == [str(os.getpid())])"
    for variables, is_alone in ((env, "True"), ({**env, "JE_ARROW_MALLOC_CONF": ""}, "False")):
        found = subprocess.check_output([sys.executable, "-c", program], env=variables, text=True)
        assert found.strip() == is_alone
