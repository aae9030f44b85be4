"""Servers of the tests, and what they serve."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.execution.tile_workers import MIN_TILE_BYTES, MemoryBudget
from zerotools.ops.serving.byte_source import ByteSource
from zerotools.ops.serving.http_answers import ServedModel, served_model
from zerotools.ops.serving.model_server import ModelServer
from zerotools.ops.serving.token_and_signature_check import Credentials

SMALL = MemoryBudget(max_memory=2 * 3 * MIN_TILE_BYTES, workers=2)


def conversion_of(path: Path, out: Path | None = None, **options: object) -> Conversion:
    """Of `path`, to `out`, if it is to be written."""
    place = out or path.with_name("served")
    found = prepare_export(path, place, Options(**options))  # type: ignore[arg-type]
    assert isinstance(found, Conversion)
    return found


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Served:
    """A server that runs; `said` is what it told of trouble."""

    url: str
    model: ServedModel
    credentials: Credentials
    said: list[str] = field(default_factory=list)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=20)

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> Reply:
        """With the token, unless `authorization` says something else."""
        given = {"authorization": f"Bearer {self.credentials.token}", **headers}
        link = self.connection()
        try:
            named = {name.replace("_", "-"): value for name, value in given.items() if value}
            link.request(method, path, headers=named)
            answer = link.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            link.close()


@contextmanager
def serving(path: Path, *, strict: bool = True, **options: object) -> Iterator[Served]:
    conversion = conversion_of(path, **options)
    model, credentials = served_model(conversion, "model"), Credentials()
    said: list[str] = []
    with (
        ByteSource(conversion, SMALL, strict=strict) as source,
        ModelServer(
            ("127.0.0.1", 0), model, source, credentials, said.append, lambda: "<!doctype html>"
        ) as server,
    ):
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Served(server.url, model, credentials, said)
        finally:
            server.shutdown()
            thread.join()
