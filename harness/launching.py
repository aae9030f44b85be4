"""Starts the ranks of a job as the supervisor does, without a daemon.

Ranks on CPUs are forked from a process that has imported torch (`harness.forked`). Ranks on GPUs
are new processes, and so are the ranks of a job that sets environment variables other than
`READ_LATE`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from harness import forked, leftovers
from harness.forked import Forked
from harness.patience import Deadline
from harness.ports import free_port
from harness.started import Started
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict

ROOT = Path(__file__).resolve().parents[1]
ENTRY = ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"
DEADLINE_SECONDS = 240.0
PAUSE_SECONDS = 0.02
KEPT = (
    *("PATH", "HOME", "TMPDIR", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"),
    *("CPATH", "LIBRARY_PATH", "TORCH_EXTENSIONS_DIR"),  # for DeepSpeed's compiler
)
"""Environment variables that ranks inherit."""
READ_LATE = {
    *("PATH", "TORCH_EXTENSIONS_DIR", "STOP_AT"),
    *("ZEROTOOLS_DATA_CACHE", "ZEROTOOLS_DATA_CACHE_BYTES"),
    *("PYTHONPATH", "MLFLOW_TRACKING_URI", "TRACKER_STAND_IN_TOLD"),  # for trackers
}
"""Environment variables that no library reads while it is imported."""

TINY_LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
TINY_GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 64,
}


def job(text: Path, **changes: Any) -> dict[str, Any]:
    """Return a job of one CPU rank that trains on the file `text`.

    `changes` are keys of the job file. A table in `changes` is merged with the default table.
    """
    tree: dict[str, Any] = {
        "device": "cpu",
        "ranks": 1,
        "seed": 7,
        "model": {"config": TINY_LLAMA},
        "data": {"text": [str(text)], "sequence_length": 32},
        "train": {
            "steps": 4,
            "batch_size": 12,
            "precision": "fp32",
            "learning_rate": 1e-2,
            "schedule": "constant",
        },
    }
    for key, value in changes.items():
        old = tree.get(key)
        merge = isinstance(old, dict) and isinstance(value, Mapping) and key != "model"
        tree[key] = {**old, **value} if merge and old else value
    if tree["data"].get("examples") and "sequence_length" not in changes["data"]:
        del tree["data"]["sequence_length"]  # which is for text
    return tree


class Mailbox:
    """Receives the datagrams that ranks send to the supervisor.

    It reads each datagram at once, because the kernel's buffer holds only a few datagrams, and
    ranks drop the rest.
    """

    def __init__(self, address: Path) -> None:
        self.datagrams: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._socket = _bound(address)
        self._address = address
        # A check that fails ends while its ranks run: no thread may wait for them.
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def wait_for(self, event: str) -> None:
        """Wait until a datagram with the event `event` has arrived, or the run has ended.

        Raises:
            AssertionError: no such datagram has arrived.
        """

        def has_come() -> bool:
            return any(item.get("event") == event for item in self.datagrams)

        self._comes(lambda: has_come() or self._is_over())
        assert has_come(), f"no {event} has arrived: {self.datagrams[-3:]}"

    def wait_for_count(self, event: str, count: int, *, more: int = 0) -> None:
        """Wait for `count` datagrams with the event `event`, and then for `more` datagrams of any
        kind.

        The wait also ends when the run ends.
        """
        assert self._comes(lambda: self._is_over() or self._counted(event, count) >= more)

    def _comes(self, condition: Callable[[], bool]) -> bool:
        deadline = Deadline(DEADLINE_SECONDS)
        with self._changed:
            while not (came := self._changed.wait_for(condition, min(1.0, deadline.left))):
                if deadline.has_passed():
                    break
        return came

    def _is_over(self) -> bool:
        return any(item.get("phase") in ("done", "stopped") for item in self.datagrams)

    def _counted(self, event: str, count: int) -> int:
        """Return the number of datagrams after the `count`-th datagram of `event`; -1 if fewer have
        arrived.
        """
        places = [n for n, item in enumerate(self.datagrams) if item.get("event") == event]
        return len(self.datagrams) - 1 - places[count - 1] if len(places) >= count else -1

    @property
    def is_closed(self) -> bool:
        """True if the mailbox was closed."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Read the remaining datagrams, and close the socket."""
        with _opened(self._address.parent) as folder, _datagram_socket() as sender:
            sender.sendto(b"", f"{folder}/{self._address.name}")
        self._thread.join()
        self._socket.close()

    def _receive(self) -> None:
        while data := self._socket.recv(65536):
            with self._changed:
                self.datagrams.append(json.loads(data))
                self._changed.notify_all()


@dataclass
class Attempt:
    """The running ranks of an attempt. `finish` waits for them."""

    run_dir: Path
    processes: Sequence[Forked | Started]
    mailbox: Mailbox

    def __str__(self) -> str:
        return f"the ranks in {self.run_dir}"

    @property
    def datagrams(self) -> list[dict[str, Any]]:
        """All datagrams so far, in order of arrival."""
        return self.mailbox.datagrams

    def finish(self, seconds: float = DEADLINE_SECONDS) -> list[int]:
        """Wait until all ranks have ended, read the remaining datagrams, and return the exit
        statuses.

        Raises:
            AssertionError: the ranks took longer than `seconds`, and were killed.
        """
        deadline = Deadline(seconds)
        while any(process.poll() is None for process in self.processes):
            if deadline.has_passed():
                states = [process.poll() for process in self.processes]
                self.end()
                said = "\n".join(self.log(rank)[-2000:] for rank in range(len(states)))
                raise AssertionError(f"after {deadline.waited:.0f} s, statuses {states}:\n{said}")
            time.sleep(PAUSE_SECONDS)
        self.mailbox.close()
        return [process.wait(0) for process in self.processes]

    def is_running(self) -> bool:
        """Return whether neither `finish` nor `end` has closed the mailbox."""
        return not self.mailbox.is_closed

    def end(self) -> None:
        """Kill all ranks."""
        for process in self.processes:
            process.end()
        self.mailbox.close()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the datagrams with the event `name`, in order of arrival."""
        return [datagram for datagram in self.datagrams if datagram.get("event") == name]

    def losses(self) -> dict[int, float]:
        """Return the losses, keyed by step."""
        return {datagram["step"]: datagram["loss"] for datagram in self.events("step")}

    def log(self, rank: int = 0) -> str:
        """Return the output of the rank `rank`."""
        return (self.run_dir / f"rank-{rank}.log").read_text("utf-8")


def resolved(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the job `tree` with all its keys, in the form in which a queue stores it.

    If the job is not valid, `tree` is returned unchanged, so that tests can give such a job to a
    rank.
    """
    try:
        return job_to_dict(job_from_dict(tree, source="job"))
    except ZerotoolsError:
        return tree


def start(
    run_dir: Path, tree: Mapping[str, Any], *, script: Path = ENTRY, token: str = "attempt"
) -> Attempt:
    """Start the ranks of the job `tree`, with the environment variables of the job.

    Checkpoints go to `run_dir/out` by default. A job on GPUs has one rank for each GPU. The nodes
    of a job identify its attempts by `token`.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    spec = {"output_dir": str(run_dir / "out"), **tree}
    (run_dir / "spec.json").write_text(json.dumps(resolved(spec)), "utf-8")
    mailbox = Mailbox(run_dir / "notify.sock")
    port = free_port()
    processes: list[Forked | Started] = []
    attempt = Attempt(run_dir, processes, mailbox)
    leftovers.note(attempt)
    ranks = tree["ranks"] if "ranks" in tree else tree["gpus"]
    fork = tree["device"] == "cpu" and tree.get("env", {}).keys() <= READ_LATE
    modules = forked.DEEPSPEED if tree.get("engine") == "deepspeed" else forked.TORCH
    arguments = ["-P", str(script), "--run-dir", str(run_dir)]
    for rank in range(ranks):
        variables = environment(rank, ranks, port, run_dir) | tree.get("env", {})
        variables |= _of_node(tree.get("rendezvous"), rank, ranks)
        variables["ZEROTOOLS_TOKEN"] = token
        with (run_dir / f"rank-{rank}.log").open("wb") as log:
            processes.append(_start_rank(arguments, variables, log, modules if fork else None))
    return attempt


def _start_rank(
    arguments: Sequence[str],
    env: Mapping[str, str],
    log: IO[bytes],
    modules: Sequence[str] | None,
) -> Forked | Started:
    """Start a rank. If `modules` is given, fork it from a process that has imported these
    modules.
    """
    if modules is not None:
        return forked.start(modules, arguments, cwd=Path.cwd(), env=env, out=log)
    return Started(
        [sys.executable, *arguments],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def run(run_dir: Path, tree: Mapping[str, Any], *, expect: int = 0) -> Attempt:
    """Start an attempt and wait until it ends with the status `expect` on every rank."""
    attempt = start(run_dir, tree)
    statuses = attempt.finish()
    assert statuses == [expect] * tree["ranks"], attempt.log()
    return attempt


def environment(rank: int, world_size: int, port: int, run_dir: Path) -> dict[str, str]:
    """Return the environment variables of a rank on CPUs.

    They are some variables of this process, the numbers of the rank, and the address at which ranks
    meet.
    """
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {
        **kept,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "ZEROTOOLS_RUN_DIR": str(run_dir),
        "ZEROTOOLS_NOTIFY": str(run_dir / "notify.sock"),
    }


def _of_node(meeting: Mapping[str, Any] | None, rank: int, ranks: int) -> dict[str, str]:
    """Return the variables that a rank needs in addition, or with other values, if the job has
    several nodes.
    """
    if not meeting:
        return {}
    host, _, port = meeting["address"].rpartition(":")
    nodes, node = meeting["nodes"], meeting.get("node_rank", 0)
    return {
        "RANK": str(node * ranks + rank),
        "WORLD_SIZE": str(nodes * ranks),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }


def _bound(address: Path) -> socket.socket:
    address.unlink(missing_ok=True)
    receiver = _datagram_socket()
    with _opened(address.parent) as folder:
        receiver.bind(f"{folder}/{address.name}")
    return receiver


def _datagram_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


@contextmanager
def _opened(directory: Path) -> Iterator[str]:
    # The address of a Unix socket is limited to 107 bytes and test directories can be deep.
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
