from __future__ import annotations

from pathlib import Path, PosixPath
from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.io.stores.parse_url import lies_in, output_of, path_of

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("s3://bucket/run/step-3/", "s3://bucket/run/step-3"),
        ("S3://Bucket/Key", "s3://Bucket/Key"),
        ("gs://bucket", "gs://bucket"),
        ("az://container/a b/c", "az://container/a b/c"),
        ("hf://team/model@main/sub", "hf://team/model@main/sub"),
        ("http://127.0.0.1:80/a", "http://127.0.0.1:80/a"),
        ("https://host/a/b.safetensors", "https://host/a/b.safetensors"),
    ],
)
def test_a_url_is_shown_as_it_was_written(given: str, shown: str) -> None:
    assert str(path_of(given)) == shown
    assert path_of(path_of(given)) == path_of(shown)


@pytest.mark.parametrize("given", ["a/b", "/a", ".", "-", "C:/x", "s3/x", "a/~/b", "~a/b:c"])
def test_anything_else_is_a_path_of_this_machine(given: str) -> None:
    assert path_of(given) == Path(given)
    assert type(path_of(given)) is PosixPath


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (f"s3://AKIA:{SECRET}@bucket/x", "has a name or a password before its host"),
        (f"https://ada:{SECRET}@host/x", "has a name or a password before its host"),
        (f"https://host/x?X-Amz-Signature={SECRET}", "has a query"),
        (f"az://c/x?sig={SECRET}", "has a query"),
        ("s3://", "has no bucket"),
        ("hf://model", "has no repository"),
        ("https:///x", "has no host"),
        ("s3://bucket/a//b", "a part ''"),
        ("s3://bucket/../b", "a part '..'"),
        (r"az://box/a\b", "which is not possible in the name of an object"),
        ("s3://bucket/a\nb", r"a part 'a\\nb'"),
        ("ftp://host/x", "is not a store that zerotools knows"),
        ("file:///x", "without file://"),
        ("s3:/bucket/x", "write s3:// in front"),
    ],
)
def test_what_is_no_url_of_a_store_is_refused_without_its_secrets(given: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said) as refusal:
        path_of(given)
    assert SECRET not in str(refusal.value)


def test_what_lies_in_a_place_is_known_however_it_was_written() -> None:
    for given in ("s3://b/run", "S3://b/run/", "s3://b/run//", "s3://b/run/step-00000004"):
        assert lies_in(given, "S3://b/run/")
    for given in (None, "", "s3://b/run-2", "s3://B/run", "gs://b/run", "/b/run"):
        assert not lies_in(given, "s3://b/run")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "an empty text is not a path; write . for"),
        ("a\0b", "has a NUL"),
        ("~", "~ is not expanded"),
        ("~/model", "~ is not expanded"),
        (b"a", "b'a' is not a path"),
        (None, "None is not a path"),
        (7, "7 is not a path"),
    ],
)
def test_what_can_be_no_path_is_refused(given: Any, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        path_of(given)


def test_a_directory_that_is_called_tilde_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "~").mkdir()
    monkeypatch.chdir(tmp_path)
    assert path_of("~/x") == Path("~/x")


@pytest.mark.parametrize("given", [".", "./", "/", "a/..", Path()])
def test_an_output_has_a_name(given: str | Path) -> None:
    with pytest.raises(BadRequest, match="cannot be an output"):
        output_of(given)
    assert output_of("a/b") == Path("a/b")
    assert str(output_of("s3://bucket/a")) == "s3://bucket/a"
