"""The proxy forwards all as it is, counts it, and makes exactly the trouble that it is told to."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection, IncompleteRead
from typing import Any

import pytest

from harness.started import Started
from harness.stores import s3, trouble
from harness.stores.faults import FaultProxy
from harness.stores.s3 import S3Server
from tests.harness.stores.conftest import Client

obstore = pytest.importorskip("obstore")
FIRST_OF_ALL = f"/{s3.BUCKET}/faults/x"


@pytest.fixture(scope="module")
def started(moto: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(moto.url) as proxy:
        yield proxy


@pytest.fixture
def proxy(started: FaultProxy, moto: S3Server) -> FaultProxy:
    moto.put("faults/x", b"0123456789")
    started.reset()
    return started


@pytest.fixture
def store(proxy: FaultProxy, client: Client) -> Any:
    return client(s3.client_env(proxy.url))


def got(proxy: FaultProxy) -> bytes:
    connection = HTTPConnection("127.0.0.1", proxy.port, timeout=20)
    try:
        connection.request("GET", FIRST_OF_ALL, headers={"Authorization": s3.AUTHORIZATION})
        return connection.getresponse().read()
    finally:
        connection.close()


def test_it_forwards_and_counts(proxy: FaultProxy, store: Any, moto: S3Server) -> None:
    data = bytes(range(256)) * (6 << 12)
    obstore.put(store, "faults/ä b", data, use_multipart=True, chunk_size=5 << 20)
    assert bytes(obstore.get(store, "faults/ä b").bytes()) == data == moto.get("faults/ä b")
    assert bytes(obstore.get_range(store, "faults/ä b", start=255, end=257)) == b"\xff\x00"
    assert obstore.head(store, "faults/ä b")["size"] == len(data)
    obstore.copy(store, "faults/ä b", "faults/copy")
    names = [each["path"] for page in obstore.list(store, "faults") for each in page]
    assert names == ["faults/copy", "faults/x", "faults/ä b"]
    obstore.delete(store, ["faults/ä b", "faults/copy"])
    once = ("begin", "complete", "get", "range", "head", "copy", "list", "delete")
    assert proxy.counts == {"part": 2, **dict.fromkeys(once, 1)}
    assert [each.number for each in proxy.seen] == list(range(1, proxy.total + 1))


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (trouble.INTERNAL_ERROR, "500"),
        (trouble.SLOW_DOWN, "SlowDown"),
        (trouble.ACCESS_DENIED, "AccessDenied"),
        (trouble.NO_SUCH_BUCKET, "NoSuchBucket"),
    ],
)
def test_a_refusal(proxy: FaultProxy, store: Any, refusal: trouble.Refuse, error: str) -> None:
    proxy.add(refusal, kind="get", first=2, times=1)
    assert len(obstore.get(store, "faults/x").bytes()) == 10
    with pytest.raises(obstore.exceptions.BaseError if error != "NoSuchBucket" else OSError) as e:
        obstore.get(store, "faults/x")
    assert error in str(e.value)
    assert len(obstore.get(store, "faults/x").bytes()) == 10


def test_a_body_that_breaks_off(proxy: FaultProxy) -> None:
    proxy.add(trouble.Truncate(4), number=1)
    proxy.add(trouble.ResetAfter(4), number=2)
    proxy.add(trouble.Garble(4), number=3)
    proxy.add(trouble.Trickle(3, 0.01), number=4)
    called: list[int] = []
    proxy.add(trouble.Call(lambda: called.append(proxy.total)), path="faults/", first=3, times=1)
    with pytest.raises(IncompleteRead) as cut:
        got(proxy)
    assert cut.value.partial == b"0123"
    with pytest.raises(ConnectionResetError):
        got(proxy)
    assert got(proxy) == b"0123\xcb56789"
    assert got(proxy) == b"0123456789"
    assert called == [3]


def test_a_body_that_breaks_off_is_an_error_of_obstore(proxy: FaultProxy, store: Any) -> None:
    proxy.add(trouble.Truncate(4), number=1)
    proxy.add(trouble.ResetAfter(4), number=2)
    for _ in range(2):
        with pytest.raises(obstore.exceptions.GenericError):
            obstore.get(store, "faults/x").bytes()


def test_a_wait_ends_with_the_proxy(moto: S3Server) -> None:
    with FaultProxy(moto.url) as proxy:
        proxy.add(trouble.Wait(1000))
        connection = HTTPConnection("127.0.0.1", proxy.port, timeout=0.1)
        connection.request("GET", FIRST_OF_ALL)
        with pytest.raises(TimeoutError):
            connection.getresponse()
        connection.close()


def test_a_lost_reply_of_what_was_done(proxy: FaultProxy, store: Any, moto: S3Server) -> None:
    proxy.add(trouble.LoseReply(), kind="put", times=1)
    with pytest.raises(obstore.exceptions.GenericError):
        obstore.put(store, "faults/lost", b"there", mode="create")
    assert moto.get("faults/lost") == b"there"
    proxy.add(trouble.LoseReply(), kind="complete", times=1)
    with pytest.raises(FileNotFoundError):  # of the upload, which the client then aborts
        obstore.put(store, "faults/whole", b"x" * 20, use_multipart=True, chunk_size=10 << 20)
    assert proxy.counts["abort"] == 1
    assert moto.sizes("faults/whole") == {"faults/whole": 20}
    obstore.delete(store, ["faults/lost", "faults/whole"])


def test_a_listing_from_before_the_last_write(proxy: FaultProxy, store: Any) -> None:
    proxy.add(trouble.ForgetWrites(), kind="list", first=2, times=1)
    obstore.put(store, "stale/a&b", b"1", use_multipart=False)

    def listed() -> list[str]:
        return [each["path"] for page in obstore.list(store, "stale") for each in page]

    assert [listed(), listed(), listed()] == [
        ["stale/a&b"],
        [],
        ["stale/a&b"],
    ]


PUTTING = """
import sys, obstore
from obstore.store import S3Store
store = S3Store(sys.argv[1])
for name in "abc":
    obstore.put(store, f"ended/{name}", b"1", use_multipart=False)
"""


@pytest.mark.parametrize("after", [False, True])
def test_a_program_is_killed_at_its_second_request(
    proxy: FaultProxy, moto: S3Server, store: Any, after: bool
) -> None:
    obstore.delete(store, ["ended/a", "ended/b", "ended/c"])
    proxy.reset()
    program = Started([sys.executable, "-c", PUTTING, s3.BUCKET], stderr=subprocess.PIPE)
    proxy.add(trouble.EndHere(program.kill, after), number=2)
    assert program.wait(20) == -signal.SIGKILL
    program.end()
    expected = {"ended/a", "ended/b"} if after else {"ended/a"}
    assert moto.sizes("ended/").keys() == expected
    assert proxy.total == 2
