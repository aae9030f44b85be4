from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.daemon.waiting import wait_for
from tests.golden_files import DEEPSPEED, JOB
from tests.ops.serving.served import Reply, Served, serving
from tests.ops.serving.test_byte_source import written
from tests.ops.verification.damage import copy
from zerotools.ops.serving import byte_source, model_server
from zerotools.ops.serving.token_and_signature_check import (
    ALGORITHM,
    SignedRequest,
    request_signature,
)

NAME = "model-00002-of-00003.safetensors"
SHARDS: dict[str, object] = {"max_shard_bytes": 5000}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(JOB, **SHARDS) as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return written(JOB, tmp_path_factory.mktemp("written") / "out", **SHARDS)


def signed(served: Served, path: str, query: str = "", method: str = "GET") -> Reply:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    host = served.url.removeprefix("http://")
    headers = {"host": host, "x-amz-date": stamp}
    pairs = [(n, v) for n, _, v in (each.partition("=") for each in query.split("&") if each)]
    own = request_signature(
        SignedRequest(method, path, pairs, headers),
        served.credentials.secret,
        ["host", "x-amz-date"],
        "here",
    )
    scope = f"{served.credentials.key_id}/{stamp[:8]}/here/s3/aws4_request"
    authorization = (
        f"{ALGORITHM} Credential={scope}, SignedHeaders=host;x-amz-date, Signature={own}"
    )
    target = path + (f"?{query}" if query else "")
    return served.ask(
        target, method=method, authorization=authorization, host=host, x_amz_date=stamp
    )


def test_the_listing_and_every_file(served: Served, files: dict[str, bytes]) -> None:
    listing = json.loads(served.ask("/").body)
    assert {each["name"]: each["size"] for each in listing["files"]} == {
        name: len(data) for name, data in files.items()
    }
    for name, data in files.items():
        reply = served.ask(f"/{name}")
        assert (reply.status, reply.body) == (200, data)
        assert int(reply.headers["Content-Length"]) == len(data)
        head = served.ask(f"/{name}", method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["ETag"] == reply.headers["ETag"]
        assert head.headers["Content-Length"] == reply.headers["Content-Length"]


def test_the_picture_opens_with_its_own_secret_alone(served: Served) -> None:
    secret = served.credentials.picture
    for query, authorization, status in (
        (f"?key={secret}", "", 200),
        (f"?key={served.credentials.token}", "", 401),
        ("", "", 401),
        (f"?key={secret}x", "", 401),
        ("", f"Bearer {secret}", 401),
    ):
        reply = served.ask(f"/picture{query}", authorization=authorization)
        assert reply.status == status, query
    reply = served.ask(f"/picture?key={secret}", authorization="")
    assert reply.body == b"<!doctype html>"
    assert reply.headers["Content-Security-Policy"].startswith("sandbox allow-scripts;")
    assert served.ask(f"/{NAME}?key={secret}", authorization="").status == 401
    assert served.ask(f"/picture?key={secret}", method="PUT", authorization="").status == 401


def test_ranges_and_conditions(served: Served, files: dict[str, bytes]) -> None:
    data, etag = files[NAME], served.model.files[NAME].etag
    part = served.ask(f"/{NAME}", range="bytes=100-199")
    assert (part.status, part.body) == (206, data[100:200])
    assert part.headers["Content-Range"] == f"bytes 100-199/{len(data)}"
    assert served.ask(f"/{NAME}", range="bytes=-9").body == data[-9:]
    behind = served.ask(f"/{NAME}", range=f"bytes={len(data)}-")
    assert (behind.status, behind.headers["Content-Range"]) == (416, f"bytes */{len(data)}")
    assert served.ask(f"/{NAME}", if_none_match=etag).status == 304
    assert served.ask(f"/{NAME}", if_match='"other"').status == 412
    assert served.ask(f"/{NAME}", if_match=etag).status == 200
    assert served.ask(f"/{NAME}", range="bytes=0-1", if_range='"other"').body == data


@pytest.mark.parametrize("path", ["/", f"/{NAME}", "/api/models/local/model", "/nothing"])
@pytest.mark.parametrize("authorization", ["", "Bearer x", "Basic eDp5", "AWS4-HMAC-SHA256 x"])
def test_nobody_is_told_anything_without_the_keys(
    served: Served, path: str, authorization: str
) -> None:
    reply = served.ask(path, authorization=authorization)
    assert reply.status == (403 if authorization.startswith("AWS4") else 401)
    assert b"safetensors" not in reply.body


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
def test_nothing_can_be_written(served: Served, method: str) -> None:
    assert served.ask("/x", method=method).status == 405
    assert served.ask("/x", method=method, authorization="Bearer x").status == 401
    assert signed(served, "/model/x", method=method).status == 405


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/%00", "/%ff", "/a" * 999],
)
def test_what_is_not_there_is_not_there(served: Served, path: str) -> None:
    assert served.ask(path).status in (400, 404)


def test_a_connection_is_used_again(served: Served, files: dict[str, bytes]) -> None:
    link = served.connection()
    authorization = {"Authorization": f"Bearer {served.credentials.token}"}
    for begin in range(0, 500, 100):
        link.request(
            "GET", f"/{NAME}", headers={**authorization, "Range": f"bytes={begin}-{begin + 9}"}
        )
        assert link.getresponse().read() == files[NAME][begin : begin + 10]
    link.request("GET", "/", body=b"what nobody reads", headers=authorization)
    assert link.getresponse().read()
    link.request("GET", "/", headers=authorization)
    assert link.getresponse().status == 200
    link.close()


def test_a_whole_url_is_a_target_too(served: Served, files: dict[str, bytes]) -> None:
    assert served.ask(f"{served.url}/{NAME}").body == files[NAME]


def test_many_read_at_the_same_time(served: Served, files: dict[str, bytes]) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: served.ask(f"/{NAME}").body, range(64)))
    assert set(found) == {files[NAME]}


def test_what_hubs_are_asked(served: Served, files: dict[str, bytes]) -> None:
    about = json.loads(served.ask("/api/models/any/model/revision/main").body)
    assert {each["rfilename"] for each in about["siblings"]} == set(files)
    reply = served.ask("/any/model/resolve/main/config.json")
    assert reply.body == files["config.json"]
    assert reply.headers["X-Repo-Commit"] == about["sha"] == served.model.revision
    absent = served.ask("/any/model/resolve/main/adapter_config.json")
    assert (absent.status, absent.headers["X-Error-Code"]) == (404, "EntryNotFound")
    assert served.ask("/api/models/any/other").headers["X-Error-Code"] == "RepoNotFound"
    tree = json.loads(served.ask("/api/models/model/tree/main").body)
    assert {each["path"]: each["size"] for each in tree} == {n: len(d) for n, d in files.items()}


SPACE = {"s3": "http://s3.amazonaws.com/doc/2006-03-01/"}


def test_the_bucket(served: Served, files: dict[str, bytes]) -> None:
    names = ElementTree.fromstring(signed(served, "/").body).findall(".//s3:Name", SPACE)
    assert [each.text for each in names] == ["model"]
    listing = ElementTree.fromstring(signed(served, "/model", "list-type=2").body)
    found = {
        each.findtext("s3:Key", "", SPACE): int(each.findtext("s3:Size", "", SPACE))
        for each in listing.findall("s3:Contents", SPACE)
    }
    assert found == {name: len(data) for name, data in files.items()}
    assert signed(served, f"/model/{NAME}").body == files[NAME]
    assert signed(served, f"/model/{NAME}", method="HEAD").status == 200
    assert signed(served, "/model", method="HEAD").status == 200
    assert b"NoSuchKey" in signed(served, "/model/none").body
    assert b"NoSuchBucket" in signed(served, "/other/none").body
    assert b"NotImplemented" in signed(served, "/model", "versions=").body


def test_a_listing_in_pages(served: Served, files: dict[str, bytes]) -> None:
    found: list[str] = []
    token = ""
    for _ in files:
        query = f"list-type=2&max-keys=2{token}"
        page = ElementTree.fromstring(signed(served, "/model", query).body)
        found += [each.text or "" for each in page.findall("s3:Contents/s3:Key", SPACE)]
        if page.findtext("s3:IsTruncated", "", SPACE) == "false":
            break
        token = f"&continuation-token={page.findtext('s3:NextContinuationToken', '', SPACE)}"
    assert found == sorted(files)
    some = signed(served, "/model", "list-type=2&prefix=model-&delimiter=-").body
    prefixes = ElementTree.fromstring(some).findall("s3:CommonPrefixes/s3:Prefix", SPACE)
    assert [each.text for each in prefixes] == ["model-00001-", "model-00002-", "model-00003-"]


def test_what_breaks_off_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    values = np.zeros(2**20, np.float32)
    values[-1] = 1e9  # too large for fp16, long after the first bytes were sent
    save_file({"w": values}, tmp_path / "model.safetensors")
    with serving(tmp_path / "model.safetensors", dtype="fp16") as found:
        with pytest.raises(http.client.IncompleteRead):
            found.ask("/model.safetensors")
        assert "w: 1 values up to 1e+09 are too large" in found.said[0]
        assert found.ask("/model.safetensors", range="bytes=0-99").status == 206
        last = found.ask("/model.safetensors", range="bytes=-2")
        assert last.status == 500
        assert b"too large for float16" in last.body


def test_a_source_that_changed_is_an_error_of_the_server(tmp_path: Path) -> None:
    path = copy(DEEPSPEED / "z3-bf16-w2" / "checkpoint", tmp_path)
    with serving(path) as found:
        assert found.ask("/model.safetensors").status == 200
        file = next(path.rglob("*rank_0*optim_states.pt"))
        file.write_bytes(file.read_bytes() + b"x")
        with pytest.raises(http.client.IncompleteRead):
            found.ask("/model.safetensors")
        assert "changed" in found.said[0]


def test_nonsense_ends_a_connection_and_no_more(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    for data in (b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n" + b"a" * 70000):
        with socket.create_connection((host, int(port)), timeout=20) as link:
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            while link.recv(65536):
                pass
    assert served.ask("/").status == 200


@pytest.fixture
def large(tmp_path: Path) -> Iterator[tuple[Served, bytes]]:
    """A file of many pieces, served with the least memory."""
    path = tmp_path / "model.safetensors"
    save_file({"w": np.arange(2**21, dtype=np.float32)}, path)
    with serving(path, dtype="fp32") as found:
        yield found, found.ask("/model.safetensors").body


def test_more_read_than_there_is_memory_to_read_ahead(large: tuple[Served, bytes]) -> None:
    served, data = large
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: served.ask("/model.safetensors"), range(24)))
    assert {each.status for each in found} == {200}
    assert {each.body for each in found} == {data}


def test_who_does_not_read_holds_nobody_up(large: tuple[Served, bytes]) -> None:
    served, data = large
    host, port = served.url.removeprefix("http://").split(":")
    request = (
        f"GET /model.safetensors HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {served.credentials.token}\r\n\r\n"
    )
    idle = [socket.create_connection((host, int(port)), timeout=20) for _ in range(5)]
    for link in idle:
        link.sendall(request.encode())
        link.recv(100)
    assert served.ask("/model.safetensors").body == data
    for link in idle:
        link.close()
    assert served.ask("/model.safetensors").body == data


def test_who_reads_slowly_gets_all(
    large: tuple[Served, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, data = large
    monkeypatch.setattr(model_server, "SEND_SECONDS", 0.5)
    link = served.connection()
    link.request(
        "GET", "/model.safetensors", headers={"Authorization": f"Bearer {served.credentials.token}"}
    )
    reply, pause = link.getresponse(), threading.Event()
    found = bytearray()
    while part := reply.read(2**19):
        found += part
        pause.wait(0.05)
    link.close()
    assert bytes(found) == data
    assert served.said == []


def test_what_carries_over_and_vanishes_is_told(tmp_path: Path) -> None:
    save_file({"w": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    with serving(tmp_path) as found:
        assert found.ask("/tokenizer.json").body == b"{}"
        (tmp_path / "tokenizer.json").unlink()
        reply = found.ask("/tokenizer.json")
        assert reply.status == 500
        assert b"tokenizer.json" in reply.body
        assert "tokenizer.json" in found.said[0]


@pytest.mark.parametrize(
    "path",
    ["/model/resolve/main/%0d%0aX-Inj:%20yes", "/x%0d%0aX-Inj:%20yes", "/%e2%82%ac.json"],
)
def test_no_word_of_a_request_becomes_a_header(served: Served, path: str) -> None:
    reply = served.ask(path)
    assert reply.status == 404
    assert "X-Inj" not in reply.headers


def test_who_shows_no_token_shuts_nobody_out(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port)), timeout=20) for _ in range(300)]
    try:
        assert served.ask("/").status == 200
    finally:
        for link in idle:
            link.close()


@pytest.mark.parametrize(
    ("trouble", "status", "why"),
    [
        (OSError(5, "Input/output error"), 500, "cannot be read: Input/output error"),
        (KeyError("lost"), None, "a defect in zerotools: KeyError('lost')"),
    ],
)
def test_trouble_of_the_disk_and_of_ours_is_told(
    monkeypatch: pytest.MonkeyPatch, trouble: Exception, status: int | None, why: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise trouble

    with serving(JOB, **SHARDS) as found:
        monkeypatch.setattr(byte_source, "fill_tile", fails)
        if status is None:
            with pytest.raises(http.client.HTTPException):
                found.ask(f"/{NAME}", range="bytes=-10")
        else:
            assert found.ask(f"/{NAME}", range="bytes=-10").status == status
        wait_for(lambda: found.said, "what went wrong")
        assert why in found.said[0]
