"""The plain HTTP server, and its kinds that have no ranges or no ETags."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from harness.stores.static import StaticServer


def test_obstore_reads_ranges_of_what_is_still_the_same(tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore")
    from obstore.store import HTTPStore

    (tmp_path / "in it").mkdir()
    (tmp_path / "in it/x").write_bytes(b"0123456789")
    (tmp_path / "empty").touch()
    with StaticServer(tmp_path) as served:
        store = HTTPStore(
            served.url, client_options={"allow_http": True}, retry_config={"max_retries": 0}
        )
        several = obstore.get_ranges(store, "in it/x", starts=[0, 7], ends=[2, 9], coalesce=0)
        assert [bytes(each) for each in several] == [b"01", b"78"]
        tag = obstore.head(store, "in it/x")["e_tag"]
        assert bytes(obstore.get(store, "empty").bytes()) == b""
        (tmp_path / "in it/x").write_bytes(b"another")
        with pytest.raises(obstore.exceptions.PreconditionError):
            obstore.get(store, "in it/x", options={"if_match": tag, "range": (0, 2)})
        with pytest.raises(FileNotFoundError):
            obstore.get(store, "none")


def test_one_without_ranges_and_etags(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    with StaticServer(tmp_path, ranges=False, etags=False) as served:
        asked = Request(f"{served.url}/x", headers={"Range": "bytes=2-3"})
        with urlopen(asked) as answer:
            assert (answer.status, answer.read()) == (200, b"0123456789")
            told = answer.headers
    assert {"ETag", "Accept-Ranges"}.isdisjoint(told)
    assert told["Last-Modified"].endswith("GMT")


@pytest.mark.parametrize("path", ["", "none", "../x", "%2e%2e/x"])
def test_what_is_no_file_below_the_directory(tmp_path: Path, path: str) -> None:
    (tmp_path / "x").touch()
    (tmp_path / "served").mkdir()
    with (
        StaticServer(tmp_path / "served") as served,
        pytest.raises(HTTPError, match="404"),
    ):
        urlopen(f"{served.url}/{path}")
