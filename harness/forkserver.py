"""Starts Python programs that have torch imported already: `forkserver.py SOCKET MODULE...`.

Importing torch and transformers takes seconds of processor time, and tests start hundreds of ranks.
This process imports the modules once, and forks for each rank. `sys.argv` and the exit status of a
forked program are the same as without this server.

A request is one datagram. It has a JSON object with `arguments` (of `python`), `cwd` and `env`, and
three file descriptors: for the output, for the errors, and a pipe for reports. The server writes
the pid to this pipe at once. When the program has ended, it writes the status of `waitpid` and the
seconds of processor time. When the socket closes, the server kills all programs.

Except for `MODULE...`, this file uses only the standard library. The process must have only one
thread when it forks.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

MAX_BYTES = 1 << 20
ROOT = Path(__file__).resolve().parents[1]
NVIDIA_DEVICE = Path("/dev/nvidiactl")
"""A file that exists if the machine has an NVIDIA GPU. Then a backward pass starts a thread for
each GPU, and a process with threads cannot be forked.
"""


class Server:
    """Forks a process for each request, and reports when the process has ended."""

    def __init__(self, requests: socket.socket) -> None:
        self.requests = requests
        self.selector = selectors.DefaultSelector()
        self.selector.register(requests, selectors.EVENT_READ)
        self.reports: dict[int, tuple[int, int]] = {}

    def serve(self) -> dict[str, Any] | None:
        """Answer requests until the socket closes, and return None.

        This method also returns in each forked process, with the request for this process.
        """
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is not self.requests:
                    self._reap(key.fd)
                    continue
                data, descriptors, *_ = socket.recv_fds(self.requests, MAX_BYTES, 3)
                if not data:
                    self._end()
                    return None
                if self._fork(*descriptors):
                    return dict(json.loads(data))

    def _fork(self, out: int, err: int, report: int) -> bool:
        assert Path("/proc/self/task").stat().st_nlink == 3, (
            "a process with threads cannot be forked"
        )
        pid = os.fork()
        if pid == 0:
            self.selector.close()
            self.requests.close()
            for pidfd, (_, end) in self.reports.items():
                os.close(pidfd)
                os.close(end)
            os.close(report)
            os.setsid()
            for stream, number in ((out, 1), (err, 2)):
                os.dup2(stream, number)
                os.close(stream)
            return True
        os.close(out)
        os.close(err)
        os.write(report, f"{pid}\n".encode())
        pidfd = os.pidfd_open(pid)
        self.reports[pidfd] = (pid, report)
        self.selector.register(pidfd, selectors.EVENT_READ)
        return False

    def _reap(self, pidfd: int) -> None:
        self.selector.unregister(pidfd)
        pid, report = self.reports.pop(pidfd)
        _, status, used = os.wait4(pid, 0)
        with suppress(BrokenPipeError):
            os.write(report, f"{status} {used.ru_utime + used.ru_stime}\n".encode())
        os.close(report)
        os.close(pidfd)

    def _end(self) -> None:
        for pid, _ in self.reports.values():
            os.kill(pid, signal.SIGKILL)


def run(request: dict[str, Any]) -> None:
    """Run the program of `request` in this process: `-m MODULE ...`, or `-P SCRIPT ...`."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if numbers := sys.modules.get("numpy.random"):
        numbers.seed()  # else what draws from it unseeded would draw the same in every run
    how, what, *rest = request["arguments"]
    sys.argv = [what, *rest]
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:0] = [request["cwd"], *places] if how == "-m" else places
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(what, run_name="__main__")


def leave(code: object) -> NoReturn:
    """End the process as the interpreter does at `SystemExit(code)`, but without unloading the
    modules.

    Unloading torch touches every shared memory page, which takes a quarter of a second.
    """
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, and lets pools end
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((code or 0) & 0xFF)


def remember_processor() -> None:
    """Make py-cpuinfo cache its result. DeepSpeed's CPU Adam calls it three times, for a second
    each.
    """
    import cpuinfo

    found = cpuinfo.get_cpu_info()
    cpuinfo.get_cpu_info = lambda: found


def train_tiny_model() -> None:
    """Train a small model for one step, as one of two ranks that exchange nothing.

    This fills caches of torch and transformers, such as patterns of names and rules of sharded
    operations. Without this step, each rank would need up to a third of a second to fill them.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import LlamaConfig, LlamaForCausalLM

    with suppress(ImportError):  # older versions have no table of patterns
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        get_checkpoint_conversion_mapping("llama")
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    # With the fake group, the first backward pass of torch 2.14 starts a thread for each device.
    torch.ones(1, requires_grad=True).sum().backward()
    hook = sys.excepthook  # to which a group of processes adds the number of the rank
    with torch.random.fork_rng():
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        mesh = init_device_mesh("cpu", (2,))
        model = LlamaForCausalLM(config)
        for part in (*model.model.layers, model):
            fully_shard(part, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tokens = torch.zeros(1, 4, dtype=torch.long)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        dist.destroy_process_group()
    sys.excepthook = hook


def serve(requests: socket.socket, modules: list[str]) -> dict[str, Any] | None:
    """Import `modules`, and answer requests; see `Server.serve`."""
    gc.disable()  # until all is imported: a sixth of what that takes
    for name in modules:
        importlib.import_module(name)
    if "deepspeed" in modules:
        remember_processor()
    trains = "zerotoolsd.trainer.prepare_and_train" in modules and "deepspeed" not in modules
    if trains and not NVIDIA_DEVICE.exists():
        train_tiny_model()
    gc.enable()
    gc.freeze()  # the collector skips the imported objects, so that their pages stay shared
    return Server(requests).serve()


def main() -> None:
    """Run the server that the command line describes."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    sys.path += [str(ROOT), str(ROOT / "daemon")]  # where the tree is not installed
    asked = serve(requests, sys.argv[2:])
    code: object = None
    try:
        if asked is not None:
            run(asked)
    except SystemExit as end:
        if "torch" not in sys.modules:
            raise
        code = end.code
    if "torch" in sys.modules:
        leave(code)


if __name__ == "__main__":
    main()
