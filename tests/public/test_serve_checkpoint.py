"""serve from Python: a server that ends with its block."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import zerotools
from tests.golden_files import DEEPSPEED
from tests.ops.serving.test_byte_source import written

ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


def read(url: str, token: str) -> bytes:
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=20) as reply:
        found = reply.read()
    assert isinstance(found, bytes)
    return found


def test_it_serves_inside_the_block_and_not_after_it(tmp_path: Path) -> None:
    files = written(ZERO3, tmp_path / "out")
    before = threading.active_count()
    with zerotools.serve(str(ZERO3), name="trial") as served:
        assert {name: len(data) for name, data in files.items()} == served.files
        for name, data in files.items():
            assert read(f"{served.url}/{name}", served.token) == data
        repository = f"{served.url}/{served.repository}/resolve/main"
        name = next(iter(files))
        assert read(f"{repository}/{name}", served.environment["HF_TOKEN"]) == files[name]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            read(f"{served.url}/{name}", "another")
        assert served.token not in repr(served)
    with pytest.raises(urllib.error.URLError):
        read(f"{served.url}/{name}", served.token)
    assert threading.active_count() == before


def test_an_error_inside_the_block_ends_it_too() -> None:
    with pytest.raises(KeyboardInterrupt), zerotools.serve(ZERO3, max_memory="64MiB") as served:
        raise KeyboardInterrupt
    with pytest.raises(urllib.error.URLError):
        read(served.url, served.token)


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(zerotools.BadRequest, match="is not HOST:PORT"):
        zerotools.serve(ZERO3, listen="here").__enter__()
    with pytest.raises(zerotools.BadRequest, match="because it is the name of a bucket"):
        zerotools.serve(ZERO3, name="A_B").__enter__()
