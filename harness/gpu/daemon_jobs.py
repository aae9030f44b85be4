"""Checks of a real daemon: a warm start, and its reports on memory, hangs and faults of a GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from harness.gpu.checks import Check, Found, missing, tree_of
from harness.launching import ROOT
from harness.patience import Deadline
from harness.started import Started
from zerotools.core.errors import DaemonUnreachable
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.states import TERMINAL
from zerotools.sensors.foreign_gpu_memory import USUAL_PART

CONFIG = """
[gpus]
locks = ""
[limits]
cpu_ranks = 2
[stop]
grace_seconds = 2
[retry]
first_seconds = 0.01
[warm_start]
enabled = true
"""
WAIT_SECONDS, PAUSE_SECONDS = 90.0, 0.1
GIB, SLACK = 1 << 30, 64 << 20
HELD = 4 * GIB
STALL = {"cuda": 20, "cpu": 4}
SPINS = {
    "cuda": "import torch\nwhile True: torch.cuda._sleep(10**12); torch.cuda.synchronize()",
    "cpu": "while True: pass",
}
HOLDS = (
    "import sys, time, torch\n"
    "held = torch.ones(int(sys.argv[1]), dtype=torch.uint8, device='cuda')\n"
    "torch.cuda.synchronize()\n"
    "print('held', flush=True)\n"
    "time.sleep(600)"
)
FILLS = (
    "import torch\n"
    "kept = [torch.ones(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(1 << 20)]"
)
BAD_ADDRESS = (
    "import torch\n"
    "code = 'template <typename T> T bad(T x) { return *(T*)16; }'\n"
    "bad = torch.cuda.jiterator._create_jit_fn(code)\n"
    "bad(torch.ones(1, device='cuda'))\n"
    "torch.cuda.synchronize()"
)
FOREIGN = "gpu_ids: '7'\nnum_processes: 3\ndistributed_type: MULTI_GPU\nmain_process_port: 1\n"
"""A user's default_config.yaml of accelerate."""
SHOWS = (
    "import os\nnames = 'RANK', 'WORLD_SIZE', 'CUDA_VISIBLE_DEVICES'\n"
    "print('seen', *(os.environ.get(name, '-') for name in names), flush=True)"
)


@contextmanager
def _daemon(directory: Path) -> Iterator[DaemonClient]:
    """Start a daemon with an empty state, and yield its client. At the end, the daemon and its jobs
    end.
    """
    (directory / "config.toml").write_text(CONFIG)
    options = ("--state-dir", directory / "state", "--config", directory / "config.toml")
    path = f"{ROOT}:{ROOT / 'daemon'}"
    env = {**os.environ, "PYTHONPATH": path}
    process = Started((sys.executable, "-m", "zerotoolsd", *options), env=env)
    client = DaemonClient(directory / "state" / "api.sock")
    try:
        _until(lambda: _answers(client), "the daemon answers")
        yield client
    finally:
        process.end()


def _answers(client: DaemonClient) -> bool:
    try:
        return bool(client.health())
    except DaemonUnreachable:
        return False


def _until(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Wait until `condition` returns a true value, and return this value.

    Raises:
        AssertionError: this did not happen in time. The message contains `what`.
    """
    deadline = Deadline(seconds)
    while not deadline.has_passed():
        if value := condition():
            return value
        time.sleep(PAUSE_SECONDS)
    raise AssertionError(f"not within {deadline.waited:.0f} s: {what}")


def _submit(client: DaemonClient, tree: Mapping[str, Any]) -> int:
    return int(client.submit(job_from_dict(tree, source="job"))["id"])


def _ended(client: DaemonClient, job: int) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        view = client.job(job)
        return view if view["state"] in TERMINAL or view["state"] == "held" else None

    found: dict[str, Any] = _until(ended, f"job {job} ends")
    return found


def _script(device: str, directory: Path, program: str, **changes: Any) -> dict[str, Any]:
    """Return a job that runs the Python code `program` on one GPU, or as one rank on the CPU."""
    place = {"gpus": 1} if device == "cuda" else {"ranks": 1}
    command = [sys.executable, "-c", program]
    script = {"command": command, "directory": str(directory), "launcher": "plain"}
    tree = {"engine": "script", "device": device, "max_restarts": 0, "script": script}
    return {**tree, **place, **changes}


def _cause(view: Mapping[str, Any]) -> str:
    attempts = view["attempts"]
    return str(attempts[-1]["cause"] if attempts else view["reason"])


def warm_start(device: str, directory: Path) -> Found:
    """Run a job, wait until a fork server is ready, and check that a second job starts from it.

    Each job must have a lease of a GPU that the machine has.
    """
    seconds, how, view = list[float](), "", dict[str, Any]()
    with _daemon(directory) as client:
        for number in range(2):
            tree = tree_of(device, "fp32", {"output_dir": str(directory / f"out-{number}")})
            job = _submit(client, tree)
            view = _ended(client, job)
            if not _is_good(view):
                return Found(f"job {number + 1} is {view['state']}: {_cause(view)}", False)
            how = _how_started(client, job)
            attempt = view["attempts"][-1]
            seconds.append(attempt["ended"] - attempt["started"])
            if number == 0:
                _until(lambda: _served(client), "a fork server is ready")
        uuids = {gpu["uuid"] for gpu in client.machine()["snapshot"]["gpus"]}
    leased = view["attempts"][-1]["gpu_uuids"]
    words = f"cold {seconds[0]:.1f} s, then {how}, {seconds[1]:.1f} s; lease {leased}"
    is_leased = device == "cpu" or (len(leased) == 1 and set(leased) <= uuids)
    return Found(words, how == "started warm" and is_leased)


def _how_started(client: DaemonClient, job: int) -> str:
    events = client.explain(job)["events"]
    return next((str(each["why"]) for each in events if each["kind"] == "started"), "")


def _served(client: DaemonClient) -> bool:
    return any(server["ready"] for server in client.machine()["warm_start"]["servers"])


def _used() -> int:
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


@contextmanager
def _stranger(size: int) -> Iterator[None]:
    """Return a context manager. Inside its context, a process outside all jobs holds `size` bytes
    of GPU memory.
    """
    command = (sys.executable, "-c", HOLDS, str(size))
    process = Started(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline().strip() != "held":
            raise AssertionError("the stranger could not take its memory")
        yield
    finally:
        process.end()


def killed(device: str, directory: Path) -> Found:
    """Kill a job that holds GPU memory, and check that the driver gets the memory back."""
    before = _used()
    with _daemon(directory) as client:
        tree = _script(device, directory, HOLDS)
        tree["script"]["command"].append(str(HELD))
        job = _submit(client, tree)
        _until(lambda: _used() - before >= HELD, "the job holds its memory")
        held = _used() - before
        mine = psutil.Process().children(recursive=True)
        rank = next(each for each in mine if str(HELD) in each.cmdline())
        began = time.monotonic()
        rank.send_signal(signal.SIGKILL)
        _until(lambda: _used() - before < SLACK, "the memory is back")
        took = time.monotonic() - began
        view = _ended(client, job)
        _until(lambda: not client.machine()["leases"], "the lease is over")
    memory = [f"a killed process held {held / GIB:.2f} GiB of {HELD / GIB:.0f} of its own"]
    return Found(f"back after {took:.1f} s; {_cause(view)}", view["state"] == "failed", memory)


def stranger(device: str, directory: Path) -> Found:
    """Hold so much GPU memory outside of the daemon that a job must wait.

    The job must say why it waits, and must run when the memory is free.
    """
    import torch

    held = int(USUAL_PART * torch.cuda.mem_get_info()[1]) + GIB
    with _daemon(directory) as client:
        with _stranger(held):
            _until(lambda: _sees(client, held), "the daemon sees the memory")
            job = _submit(client, _script(device, directory, "pass"))
            said = str(_until(lambda: _waits(client, job), "the job says why it waits"))
        view = _ended(client, job)
    return Found(f"{said}; then {view['state']}", "GiB in use" in said and _is_good(view))


def _sees(client: DaemonClient, size: int) -> bool:
    gpus = client.machine()["snapshot"]["gpus"]
    return any((gpu["memory_used_bytes"] or 0) >= size for gpu in gpus)


def _waits(client: DaemonClient, job: int) -> str | None:
    view = client.job(job)
    if view["state"] != "queued":
        return f"the job is {view['state']}"
    return view["reason"] if "in use" in str(view["reason"]) else None


def _is_good(view: Mapping[str, Any]) -> bool:
    return bool(view["state"] == "succeeded")


def _of_cause(program: str, kind: str, words: str) -> Callable[[str, Path], Found]:
    """Return a check that runs `program` and expects a cause of the kind `kind` that contains
    `words`.
    """

    def look(device: str, directory: Path) -> Found:
        with _daemon(directory) as client:
            view = _ended(client, _submit(client, _script(device, directory, program)))
        kinds = [attempt["cause_kind"] for attempt in view["attempts"]]
        said = f"{view['state']}, {kinds}: {_cause(view)}"
        return Found(said, kinds == [kind] and words in said)

    return look


def spinning(device: str, directory: Path) -> Found:
    """Run a program that computes forever, and check that the job's stall limit ends it."""
    limit = STALL[device]
    with _daemon(directory) as client:
        stall = {"silence_limit": limit, "action": "end"}
        tree = _script(device, directory, SPINS[device], stall=stall)
        began = time.monotonic()
        view = _ended(client, _submit(client, tree))
        took = time.monotonic() - began
    attempt = view["attempts"][-1]
    ok = attempt["cause_kind"] == "hang" and took >= limit
    return Found(f"ended after {took:.1f} s of a limit of {limit} s: {_cause(view)}", ok)


def accelerated(device: str, directory: Path) -> Found:
    """Start a program with accelerate, and check that the job's GPU and number of processes are
    used.

    A config file of accelerate names another GPU and more processes.
    """
    if (absent := missing("accelerate")) is not None:
        return absent
    home = directory / "home"
    config = home / ".cache/huggingface/accelerate/default_config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(FOREIGN)
    (directory / "shows.py").write_text(SHOWS)
    tree = _script(device, directory, "")
    tree["script"] |= {"command": ["shows.py"], "launcher": "accelerate"}
    tree |= {"python": sys.executable, "env": {"HOME": str(home)}}
    with _daemon(directory) as client:
        view = _ended(client, job := _submit(client, tree))
        log = client.logs(job).data.decode("utf-8", "replace")
    seen = [line.split()[1:] for line in log.splitlines() if line.startswith("seen ")]
    leased = view["attempts"][-1]["gpu_uuids"] if view["attempts"] else []
    visible = leased[0] if leased else "-"
    words = f"{view['state']}, ranks {seen}, lease {visible}"
    ranks = [each[:2] for each in seen]
    right = device == "cpu" or all(each[2] == visible for each in seen)
    return Found(words, len(ranks) == 1 and right and _is_good(view))


NO_MEMORY = "a CPU has no memory that a driver allocates"
CHECKS = {
    "warm start": Check("a warm job after a cold one, with a lease by UUID", 120, warm_start),
    "a killed job": Check("its memory is back, its lease is over", 60, killed, NO_MEMORY),
    "a stranger on the GPU": Check("the job waits for it, and says so", 90, stranger, NO_MEMORY),
    "out of memory": Check(
        "it is the cause", 60, _of_cause(FILLS, "gpu_memory", "memory"), NO_MEMORY
    ),
    "a spinning kernel": Check("ended at the job's limit, as a hang", 90, spinning),
    "an illegal address": Check(
        "the cause names XID 31",
        60,
        _of_cause(BAD_ADDRESS, "gpu_program", "XID 31"),
        "a CPU has no XIDs",
    ),
    "accelerate's config file": Check("one rank, on the GPU of the lease", 60, accelerated),
}
