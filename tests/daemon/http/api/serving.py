"""The real application on a real Unix socket, in a thread of its own.

In the end it is checked that the document has every status that was answered.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.daemon.http.api.answer_log import AnswerLog
from tests.daemon.http.api.fake_page import FakePage
from zerotoolsd.http.api.listening_sockets import TcpListener, open_socket
from zerotoolsd.http.api.request_limits import RateLimit
from zerotoolsd.http.api.routes import make_app
from zerotoolsd.http.api.server import ApiServer
from zerotoolsd.service.answer_requests import JobRequests


@contextmanager
def serving(
    service: JobRequests,
    path: Path,
    *,
    tcp: TcpListener | None = None,
    most: int | None = None,
    rate: RateLimit | None = None,
) -> Iterator[None]:
    """Serve `service` at `path` inside the block, to `most` connections and at a `rate`."""
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    answers = AnswerLog()

    async def serve() -> None:
        server = ApiServer(
            make_app(service, None if tcp is None else tcp.tokens, page=FakePage(), rate=rate),
            open_socket(path),
            path,
            tcp=tcp,
            close_seconds=0.1,
            most=most,
        )
        answers.watch(server._runner.app)
        await server.start()
        ready.set()
        await stop.wait()
        await server.close()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        path.unlink(missing_ok=True)
    assert answers.undocumented() == {}
