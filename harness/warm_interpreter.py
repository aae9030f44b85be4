"""An interpreter for jobs of real daemons, in which ranks and model checks have torch already
imported.

A job names it as its `python`. Otherwise, each process would import torch, which takes 4 to 8 s.
Other jobs use Python itself, so the import is tested, too.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import socket
import sys
import threading
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from harness import forked

CLIENT = Path(__file__).with_name("warm_client.py")
MODULES = ("zerotoolsd.slurm.runner.node",)
WARM = (
    "trainer/entry.py",
    "trainer/preflight_model_and_data.py",
    "preflight/deepspeed_config_check.py",
)
LOOK_SECONDS = 0.05


@contextmanager
def interpreter(path: Path, modules: Sequence[str], scripts: Sequence[str] = ()) -> Iterator[Path]:
    """Return a context manager that makes an interpreter at `path`, and yields the path.

    The interpreter runs `WARM`, `MODULES` and the scripts `scripts` with `modules` already
    imported. It works only inside the context.
    """
    address = uuid4().hex
    words = (sys.executable, "-I", "-S", str(CLIENT), address)
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', "utf-8")
    path.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen()
        thread = threading.Thread(target=_serve, args=(listener, modules, frozenset(scripts)))
        thread.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(listener: socket.socket, modules: Sequence[str], scripts: Set[str]) -> None:
    threads = []
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # it was shut down
            break
        threads.append(threading.Thread(target=_stand_behind, args=(client, modules, scripts)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def _program(arguments: list[str], scripts: Set[str]) -> list[str] | None:
    """Return `arguments` in the form that `forked` needs; None if the client must run the program
    itself.
    """
    if arguments[:1] == ["-P"] and arguments[1].endswith(WARM):
        return arguments
    if arguments[:2] == ["-P", "-m"] and arguments[2] in MODULES:
        return arguments[1:]
    return ["-P", *arguments] if arguments and arguments[0] in scripts else None


def _stand_behind(client: socket.socket, modules: Sequence[str], scripts: Set[str]) -> None:
    """Run the program of a client, and send its exit status. If the client disconnects, kill the
    program.
    """
    with ExitStack() as stack:
        stack.enter_context(client)
        data, [fd], *_ = socket.recv_fds(client, 1 << 20, 1)
        out = stack.enter_context(os.fdopen(fd, "wb", buffering=0))
        request = json.loads(data)
        if (arguments := _program(request["arguments"], scripts)) is None:
            return
        cwd, env = Path(request["cwd"]), request["env"]
        process = forked.start(modules, arguments, cwd=cwd, env=env, out=out, kept=True)
        client.send(str(process.pid).encode())
        while process.is_running():
            if select.select([client], [], [], LOOK_SECONDS)[0]:
                process.end()
                return
        client.send(str(process.returncode).encode())
