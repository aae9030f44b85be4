"""A store that is in trouble, as a bucket sees it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.stores.faults import FaultProxy
from harness.stores.gcs import GcsServer
from harness.stores.static import StaticServer
from harness.stores.trouble import (
    ACCESS_DENIED,
    INTERNAL_ERROR,
    NO_SUCH_BUCKET,
    SLOW_DOWN,
    Call,
    LoseReply,
    ResetAfter,
    Truncate,
)
from tests.io.stores.far import far, troubled
from tests.ops.exports import model, noise
from zerotools import formats
from zerotools.core.errors import BadFile, BadRequest, HostUnreachable, ZerotoolsError
from zerotools.io.stores.parse_url import path_of
from zerotools.io.stores.s3_gs_azure_http import open_bucket
from zerotools.io.stores.store_interface import FarObject, OddKey, WritableStore
from zerotools.io.stores.store_path import put_object, remove_objects, writable_store

DATA = bytes(range(256)) * 1000


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[GcsServer, FaultProxy]]:
    with troubled(monkeypatch) as both:
        both[0].put("run/a", DATA)
        yield both


Both = tuple[GcsServer, FaultProxy]


def bucket() -> WritableStore:
    return writable_store(far("run/a"))[0]


@pytest.mark.parametrize(
    "what", [SLOW_DOWN, INTERNAL_ERROR, ResetAfter(1000), Truncate(1000), ResetAfter(0)]
)
def test_a_request_that_fails_once_is_asked_again(trouble: Both, what: object) -> None:
    trouble[1].add(what, kind="range", times=1)  # type: ignore[arg-type]
    assert far("run/a").open_source().read(len(DATA), 0) == DATA
    assert trouble[1].counts["range"] >= 2


@pytest.mark.parametrize("what", [SLOW_DOWN, ResetAfter(10), Truncate(10)])
def test_so_is_a_listing(trouble: Both, what: object) -> None:
    trouble[1].add(what, kind="list", times=1)  # type: ignore[arg-type]
    assert [each.name for each in far("run").iterdir()] == ["a"]


@pytest.mark.parametrize("what", [SLOW_DOWN, ResetAfter(10), Truncate(10), Truncate(300)])
@pytest.mark.parametrize("page", [1, 2, 4])
def test_a_page_of_a_listing_that_breaks_is_not_the_last(
    trouble: Both, what: object, page: int
) -> None:
    names = [f"run/b{number:02}" for number in range(17)]
    for name in names:
        trouble[0].put(name, b"x")
    trouble[1].add(what, kind="list", first=page, times=2)  # type: ignore[arg-type]
    assert [each.key for each in bucket().below("run")] == ["run/a", *names]


def test_a_listing_that_breaks_again_and_again_is_an_error(trouble: Both) -> None:
    for number in range(17):
        trouble[0].put(f"run/b{number:02}", b"x")
    trouble[1].add(Truncate(10), kind="list", first=2)
    with pytest.raises(HostUnreachable, match="gs://checkpoints/run cannot be listed"):
        list(bucket().below("run"))


@pytest.mark.parametrize("odd", ["run//x.txt", "run/../x", "run/./y", "run/y\nz"])
def test_a_key_that_is_no_path_is_named(trouble: Both, odd: str) -> None:
    trouble[0].put(odd, b"x")
    with pytest.raises(OddKey, match=f"the key {re.escape(repr(odd))} has a part"):
        list(bucket().below("run"))
    with pytest.raises(OddKey, match="gs://checkpoints/run cannot be listed: the key 'run/"):
        bucket().directory("run")


def test_a_key_that_is_no_path_does_not_hide_a_model(trouble: Both) -> None:
    for name in ("run/model.safetensors", "run/config.json", "run/deep/er//x"):
        trouble[0].put(name, b"x")
    assert far("run").listing_problem == ""
    assert sorted(each.name for each in far("run").iterdir()) == [
        "a", "config.json", "deep", "model.safetensors"
    ]  # fmt: skip
    trouble[0].put("run//x", b"x")
    far("run").forget()
    assert sorted(each.name for each in far("run").iterdir()) == [
        "config.json", "model.safetensors"
    ]  # fmt: skip
    assert "the key 'run//' has a part" in far("run").listing_problem


def test_an_object_that_changes_while_it_is_read_is_named(trouble: Both) -> None:
    source = far("run/a").open_source()
    assert source.read(10, 0) == DATA[:10]
    trouble[0].put("run/a", DATA[::-1])
    with pytest.raises(BadFile, match=r"gs://checkpoints/run/a changed while it was read"):
        source.read(100_000, 100_000)


def test_so_is_one_that_is_gone(trouble: Both) -> None:
    source = far("run/a").open_source()
    trouble[1].add(Call(lambda: trouble[0].objects["checkpoints"].clear()), kind="range", times=1)
    with pytest.raises(BadFile, match=r"run/a changed while it was read: it is gone"):
        source.read(100_000, 0)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (ACCESS_DENIED, r"the store refuses it \(403 AccessDenied\)"),
        (NO_SUCH_BUCKET, "gs://checkpoints does not exist"),
    ],
)
def test_a_bucket_without_rights_or_that_is_not_there_is_refused(
    trouble: Both, what: object, said: str
) -> None:
    trouble[1].add(what)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=said):
        far("run").exists()
    with pytest.raises(BadRequest, match=said):
        put_object(far("run/b"), b"x")


def test_small_objects_are_written_on_conditions(trouble: Both) -> None:
    store = bucket()
    first = store.put("run/new", b"one", new=True)
    with pytest.raises(FileExistsError):
        store.put("run/new", b"two", new=True)
    second = store.put("run/new", b"two", replaces=first)
    with pytest.raises(FileExistsError):
        store.put("run/new", b"three", replaces=first)
    assert trouble[0].get("run/new") == b"two"
    assert second != first


def test_an_upload_is_whole_or_not_there(trouble: Both) -> None:
    store, part = bucket(), 5 * 2**20

    def pieces(*, fails: bool) -> Iterator[bytes]:
        for number in range(12):
            if fails and number == 10:
                raise BadFile("the source ends early")
            yield bytes([number]) * 2**20

    with pytest.raises(BadFile, match="ends early"):
        store.upload("run/large", pieces(fails=True), part, 2)
    assert trouble[0].uploads() == []
    assert "run/large" not in trouble[0].sizes()
    trouble[1].add(ACCESS_DENIED, kind="part", times=1)
    with pytest.raises(BadRequest, match=r"run/large cannot be written: .* refuses it \(403"):
        store.upload("run/large", pieces(fails=False), part, 2)
    assert "run/large" not in trouble[0].sizes()
    trouble[1].add(SLOW_DOWN, kind="part", times=1)
    written = store.upload("run/large", pieces(fails=False), part, 2)
    assert written.size == 12 * 2**20
    assert trouble[0].get("run/large") == b"".join(pieces(fails=False))


def test_a_reply_that_is_lost_does_not_lose_the_object(trouble: Both) -> None:
    trouble[1].add(LoseReply(), kind="put", times=1)
    put_object(far("run/b"), b"x")
    assert trouble[0].get("run/b") == b"x"


def test_what_is_not_there_is_removed_without_a_mistake(trouble: Both) -> None:
    remove_objects([far("run/a"), far("run/none")])
    assert trouble[0].sizes() == {}
    assert bucket().head("run/a") is None
    with pytest.raises(BadFile, match="gone"):
        bucket().get(FarObject("run/a", 5, "e"), 0, 5)


pytest.importorskip("obstore")


def names_at(url: str) -> list[str]:
    return sorted(each.name for each in path_of(url).iterdir())


def test_a_model_is_found_by_its_index(tmp_path: Path) -> None:
    model(tmp_path / "m", {"a": noise(3, 4)}, **{"config.json": "{}"})
    shard = tmp_path / "m" / "model-00001-of-00001.safetensors"
    (tmp_path / "m" / "model.safetensors").rename(shard)
    index = {"metadata": {}, "weight_map": {"a": shard.name, "b": "../../etc/passwd"}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "m" / "other.txt").write_text("is in no index")
    with StaticServer(tmp_path) as server:
        found = names_at(f"{server.url}/m")
    assert found == ["config.json", shard.name, "model.safetensors.index.json"]


def test_a_file_alone_is_read(tmp_path: Path) -> None:
    model(tmp_path / "m", {"a": noise(3, 4)})
    with StaticServer(tmp_path) as server:
        found = formats.read(path_of(f"{server.url}/m/model.safetensors"))
        assert [key.name for key in found.tensors] == ["a"]
        with pytest.raises(BadRequest, match="does not exist"):
            formats.read(path_of(f"{server.url}/n"))


def test_what_zerotools_wrote_is_listed_by_its_marker(tmp_path: Path) -> None:
    (tmp_path / "out" / "sub").mkdir(parents=True)
    files = {"a.pt": {"size": 1}, "sub/b.pt": {"size": 1}, "gone.pt": {"size": 1}}
    (tmp_path / "out" / ".zerotools-output.json").write_text(json.dumps({"files": files}))
    for name in ("a.pt", "sub/b.pt"):
        (tmp_path / "out" / name).write_text("x")
    with StaticServer(tmp_path) as server:
        assert names_at(f"{server.url}/out") == [".zerotools-output.json", "a.pt", "sub"]
        assert names_at(f"{server.url}/out/sub") == ["b.pt"]


@pytest.mark.parametrize("etags", [True, False])
def test_a_file_that_changes_is_named(tmp_path: Path, etags: bool) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(bytes(200_000))
    with StaticServer(tmp_path, etags=etags) as server:
        source = path_of(f"{server.url}/a.safetensors").open_source()  # type: ignore[attr-defined]
        assert source.read(10, 0) == bytes(10)
        file.write_bytes(b"1" * 200_000)
        os.utime(file, (1, 1))
        with pytest.raises(BadFile, match="changed while it was read"):
            source.read(10, 150_000)


def test_a_server_without_ranges_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(200_000))
    with StaticServer(tmp_path, ranges=False) as server:
        source = path_of(f"{server.url}/a.safetensors").open_source()  # type: ignore[attr-defined]
        with pytest.raises(ZerotoolsError, match="does not send ranges"):
            source.read(10, 0)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(
        HostUnreachable, match=r"http://127.0.0.1:9/a.* cannot be read: the connection was refused"
    ):
        path_of("http://127.0.0.1:9/a").is_file()


@pytest.mark.parametrize(
    ("scheme", "variables", "said"),
    [
        ("s3", {"AWS_SKIP_SIGNATURE": "perhaps"}, 'failed to parse "perhaps" as boolean'),
        ("gs", {"GOOGLE_APPLICATION_CREDENTIALS": "/no/such"}, "from /no/such: No such file"),
        ("az", {}, "az://b cannot be opened: Account must be specified"),
    ],
)
def test_wrong_settings_are_refused_before_a_request(
    scheme: str, variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in os.environ if each.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadRequest, match=said):
        open_bucket(scheme, "b")
