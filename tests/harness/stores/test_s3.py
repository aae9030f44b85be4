"""Moto's S3 does what our docstring says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.stores import s3
from harness.stores.s3 import S3Server

obstore = pytest.importorskip("obstore")


@pytest.fixture
def served(moto: S3Server) -> S3Server:
    return moto


@pytest.fixture
def store(served: S3Server, client: Callable[[str], Any]) -> Any:
    return client(served.url)


def test_ranges_and_matches_of_a_get(store: Any) -> None:
    tag = obstore.put(store, "get/x", b"0123456789")["e_tag"]
    several = obstore.get_ranges(store, "get/x", starts=[0, 7], ends=[2, 9], coalesce=0)
    assert [bytes(each) for each in several] == [b"01", b"78"]
    assert bytes(obstore.get(store, "get/x", options={"range": {"suffix": 3}}).bytes()) == b"789"
    same = obstore.get(store, "get/x", options={"if_match": tag, "range": (1, 3)})
    assert bytes(same.bytes()) == b"12"
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.get(store, "get/x", options={"if_match": '"other"', "range": (1, 3)})
    with pytest.raises(obstore.exceptions.GenericError, match="416"):
        obstore.get_range(store, "get/x", start=10, end=12)


def test_a_conditional_put(store: Any, served: S3Server) -> None:
    tag = obstore.put(store, "put/x", b"1", mode="create")["e_tag"]
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "put/x", b"2", mode="create")
    obstore.put(store, "put/x", b"3", mode={"e_tag": tag})
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.put(store, "put/x", b"4", mode={"e_tag": tag})
    assert served.get("put/x") == b"3"


def test_a_listing_has_pages(store: Any, served: S3Server) -> None:
    names = {f"pages/{number}": 1 for number in range(20)}
    for name in names:
        served.put(name, b"1")
    pages = obstore.list(store, "pages", chunk_size=50)
    assert {each["path"]: each["size"] for page in pages for each in page} == names
    assert served.sizes("pages/") == names
    assert obstore.list_with_delimiter(store)["common_prefixes"].count("pages") == 1


def test_a_multipart_upload_is_seen_completed_or_aborted(store: Any, served: S3Server) -> None:
    part = b"x" * (5 << 20)
    obstore.put(store, "parts/done", part + b"y", use_multipart=True, chunk_size=5 << 20)
    assert served.sizes("parts/") == {"parts/done": len(part) + 1}
    assert obstore.head(store, "parts/done")["e_tag"].endswith('-2"')
    begun = served.ask("POST", f"/{served.bucket}/parts/not?uploads").decode("ascii")
    assert served.uploads() == ["parts/not"]
    number = begun.partition("<UploadId>")[2].partition("</UploadId>")[0]
    served.ask("DELETE", f"/{served.bucket}/parts/not?uploadId={number}")
    assert served.uploads() == []


def test_nobody_is_asked_for_rights(served: S3Server) -> None:
    from obstore.store import S3Store

    other = S3Store(
        served.bucket,
        endpoint=served.url,
        access_key_id="nobody",
        secret_access_key="nothing",
        region=s3.REGION,
        client_options={"allow_http": True},
    )
    obstore.put(other, "rights", b"1")
    assert served.get("rights") == b"1"
