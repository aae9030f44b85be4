"""Moto's S3 does what our docstring says of it."""

from __future__ import annotations

from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from harness.stores.s3 import S3Server
from tests.harness.stores.conftest import Client
from tests.harness.stores.judged import check_store


def test_it_is_a_store(moto: S3Server, client: Client) -> None:
    check_store(client(moto.env), moto, page_keys=7)


def test_an_upload_is_seen_until_it_is_aborted_or_completed(moto: S3Server) -> None:
    def begun(key: str) -> str:
        answer = moto.ask("POST", f"/{moto.bucket}/{key}?uploads").decode("ascii")
        assert moto.uploads() == [key]
        return f"/{moto.bucket}/{key}?uploadId=" + answer.split("UploadId>")[1].rstrip("</")

    moto.ask("DELETE", begun("uploads/none"))
    assert moto.uploads() == []
    upload = begun("uploads/one")
    moto.ask("PUT", f"{upload}&partNumber=1", b"data")
    part = "<PartNumber>1</PartNumber><ETag>8d777f385d3dfec8815d20f7496026dc</ETag>"
    said = f"<CompleteMultipartUpload><Part>{part}</Part></CompleteMultipartUpload>".encode()
    for _ in range(2):  # a client whose first answer was lost
        moto.ask("POST", upload, said)
    assert moto.uploads() == []
    assert moto.sizes("uploads/") == {"uploads/one": 4}


def test_who_has_no_key_is_refused_and_any_key_will_do(moto: S3Server, client: Client) -> None:
    other = client({**moto.env, "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "none"})
    other.put("rights/x", b"1")
    assert moto.get("rights/x") == b"1"
    with pytest.raises(HTTPError, match="403"):
        urlopen(f"{moto.url}/{moto.bucket}/rights/x")
