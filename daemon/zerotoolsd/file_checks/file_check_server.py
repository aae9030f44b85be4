"""The check server: a process that forks the processes which read files of users.

The check server is forked before the daemon has threads, an event loop, its lock or its database.
So its forks have none of these resources either, and a fork that hangs forever in the kernel holds
no resource of the daemon. A fork takes a millisecond; a new interpreter would take 300 ms.

To get a new process, the daemon sends one end of a socket pair, and the user that the new process
must become. The new process becomes that user permanently, sends its pid over the socket, and then
handles requests until the socket is closed. A message consists of its length in four bytes
(big-endian) and the data. A request is a pickle, because it comes from the daemon. A reply is JSON,
because the process has read files of users and is not trusted.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import pickle
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.io.files import mounts
from zerotoolsd.users import run_as_user
from zerotoolsd.users.start_as_submitter import JobUser

LONGEST_ORDER = 1 << 16
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

SIGN_OF_LIFE = "sign of life"
"""Name of a request that every process answers, in addition to its own functions:
`mounts.mount_responds`.
"""
Look = Callable[..., Any]
"""A function that reads files and returns JSON values. It raises ZerotoolsError and OSError."""


def start_check_server(looks: Mapping[str, Look], modules: Sequence[str] = ()) -> socket.socket:
    """Start the check server and return its socket. Closing the socket ends the server.

    Call this before threads exist. The server imports `modules`, which the daemon need not import.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    daemon, pid = os.getpid(), os.fork()
    if pid == 0:
        ours.close()
        _run(
            lambda: _nurse(theirs, {**looks, SIGN_OF_LIFE: mounts.mount_responds}, modules), daemon
        )
    theirs.close()
    return ours


def question_of(name: str, arguments: tuple[object, ...]) -> bytes:
    """Return the message that requests a check by the name of its function."""
    return with_length(pickle.dumps((name, arguments)))


def request_check_process(server: socket.socket, user: JobUser | None = None) -> socket.socket:
    """Ask the check server for a new process of `user` (None: the user of the daemon). Return
    the daemon's end of its socket.

    Raises OSError.
    """
    who = None if user is None else {**user.who, "env": user.least}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        socket.send_fds(server, [json.dumps(who).encode()], [theirs.fileno()])
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours


def _run(body: Callable[[], None], parent: int) -> None:
    """Call `body` in a forked process, and exit.

    The process ends when its parent ends. Otherwise a removal of files could continue while the
    next daemon also removes files.
    """
    status = 1
    try:
        _die_with(parent)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # Ctrl-C is for the daemon; its end is ours
        body()
        status = 0
    finally:
        os._exit(status)


def _die_with(parent: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _nurse(orders: socket.socket, looks: Mapping[str, Look], modules: Sequence[str]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes ended children
    for name in modules:
        import_module(name)
    gc.freeze()
    nurse = os.getpid()
    while True:
        who, descriptors, _, _ = socket.recv_fds(orders, LONGEST_ORDER, 1)
        if not descriptors:
            return
        if os.fork() == 0:
            orders.close()
            with socket.socket(fileno=descriptors[0]) as link:
                _run(partial(_answer_as, who, link, looks, nurse), nurse)
        os.close(descriptors[0])


def _as(who: Mapping[str, Any] | None, looks: Mapping[str, Look]) -> Mapping[str, Look]:
    """Become the user `who`, and return the functions `looks`. If that fails, return functions that
    raise the error instead.
    """
    if who is None:
        return looks
    try:
        if os.geteuid() == 0:
            run_as_user.be_ended_first(run_as_user.FIRST)
        run_as_user.set_limits({"open_files": who["open_files"]})
        run_as_user.become_user(who["uid"], who["gid"], who["groups"])
    except (run_as_user.NotDropped, OSError) as error:
        why = f"the files of the job cannot be checked as its user: {error}"
        return {name: partial(_refuse, why) for name in looks}
    os.umask(0o077)
    os.environ.clear()
    os.environ.update(who["env"])
    return looks


def _refuse(why: str, *_: object) -> None:
    raise BadRequest(why)


def _answer_as(who: bytes, link: socket.socket, looks: Mapping[str, Look], nurse: int) -> None:
    _answer(link, _as(json.loads(who), looks), nurse)


def _answer(link: socket.socket, looks: Mapping[str, Look], parent: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _die_with(parent)  # set it again: a change of the user resets it
    with suppress(ConnectionError):
        link.sendall(with_length(str(os.getpid()).encode()))
        while (question := receive_message(link)) is not None:
            name, arguments = pickle.loads(question)
            answer = json.dumps(answer_to(looks[name], *arguments))
            link.sendall(with_length(answer.encode()))


def answer_to(look: Look, *arguments: object) -> dict[str, Any]:
    """Call `look` with the arguments. Return `{"value": RESULT}`, or `{"error": CLASS, "message":
    TEXT}` for an exception.
    """
    try:
        return {"value": look(*arguments)}
    except ZerotoolsError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except OSError as error:
        name = None if error.filename is None else os.fsdecode(error.filename)
        said = {"errno": error.errno, "message": error.strerror or str(error), "filename": name}
        return {"error": OSError.__name__, **said}
    except Exception as error:  # a defect in the check of one job: the caller gets the error
        return {"error": None, "message": f"{type(error).__name__}: {error}"}


_LENGTH = struct.Struct(">I")
HEAD = _LENGTH.size
LARGEST = 1 << 26


def with_length(data: bytes) -> bytes:
    """Return `data` as a message, with its length before it."""
    return _LENGTH.pack(len(data)) + data


def length_of(head: bytes) -> int:
    """Return the length in bytes of the message that follows `head`. Raises ConnectionError if the
    length exceeds the limit.
    """
    (length,) = _LENGTH.unpack(head)
    if length > LARGEST:
        raise ConnectionError(f"a message has {length} bytes, but at most {LARGEST} are allowed")
    return int(length)


def receive_message(link: socket.socket) -> bytes | None:
    """Return the next message of the socket; None at its end."""
    head = _exactly(link, HEAD)
    return None if head is None else _exactly(link, length_of(head))


async def receive_from(reader: asyncio.StreamReader) -> bytes:
    """Return the next message of the stream. Raises asyncio.IncompleteReadError and
    ConnectionError."""
    return await reader.readexactly(length_of(await reader.readexactly(HEAD)))


def _exactly(link: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = link.recv(count - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
