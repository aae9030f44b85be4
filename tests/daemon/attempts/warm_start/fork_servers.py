"""Real fork servers, which import next to nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.daemon.made_attempts import FAKE_RANK, an_attempt_row, make_attempt, own_token
from tests.daemon.waiting import wait_for
from zerotoolsd.attempts.backends.fork_server import ForkServer, ServerKind
from zerotoolsd.queue.rows import AttemptRow

ENV = {"PATH": os.environ["PATH"], "ZEROTOOLS_TOKEN": "-" * 32, "WORD": "the server's"}


def a_kind(*modules: str, **env: str) -> ServerKind:
    """What such a server imports, and is executed with."""
    return ServerKind(sys.executable, modules, tuple(sorted({**ENV, **env}.items())))


@contextmanager
def fork_server(*modules: str, **env: str) -> Iterator[ForkServer]:
    """A server, which is ended."""
    server = ForkServer(a_kind(*modules, **env), now=0.0)
    try:
        yield server
    finally:
        server.end()


def ready(server: ForkServer) -> ForkServer:
    """`server`, once it has imported."""
    wait_for(server.is_ready, "the fork server to import")
    return server


def prepared(run_dir: Path, fake: str, **env: str) -> AttemptRow:
    """An attempt whose ranks do what `fake` says, and which can be started warm."""
    argv = (sys.executable, "-P", str(FAKE_RANK), "--run-dir", str(run_dir))
    own = {"FAKE": fake, "ZEROTOOLS_RUN_DIR": str(run_dir), "ZEROTOOLS_TOKEN": own_token()}
    make_attempt(run_dir, fake, argv=argv, env={**own, **env})
    return an_attempt_row(token=own_token(), run_dir=str(run_dir))
