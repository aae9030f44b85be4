"""What every store must do, judged by a client that thousands use: obstore."""

from __future__ import annotations

from typing import Any

import pytest

from harness.stores.azure import AzureServer

PART = 5 << 20


def check_store(store: Any, served: Any, page_keys: int) -> None:
    """All of it. `served` is the harness' server that `store` asks."""
    obstore = pytest.importorskip("obstore")
    check_gets(obstore, store)
    check_puts(obstore, store, served)
    check_listings(obstore, store, served, page_keys)
    check_parts(obstore, store, served)


def check_gets(obstore: Any, store: Any) -> None:
    errors = obstore.exceptions
    put = obstore.put(store, "get/x", b"0123456789", use_multipart=False)
    tag = put["e_tag"]
    assert tag == obstore.head(store, "get/x")["e_tag"]
    several = obstore.get_ranges(store, "get/x", starts=[0, 7], ends=[2, 9], coalesce=0)
    assert [bytes(each) for each in several] == [b"01", b"78"]
    same = obstore.get(store, "get/x", options={"if_match": tag, "range": (1, 3)})
    assert bytes(same.bytes()) == b"12"
    with pytest.raises(errors.PreconditionError):
        obstore.get(store, "get/x", options={"if_match": '"other"', "range": (1, 3)})
    with pytest.raises(errors.NotModifiedError):
        obstore.get(store, "get/x", options={"if_none_match": tag})
    with pytest.raises(errors.GenericError, match=r"416|StartTooLarge"):
        obstore.get_range(store, "get/x", start=10, end=12)
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "get/none")
    obstore.put(store, "get/empty", b"", use_multipart=False)
    assert bytes(obstore.get(store, "get/empty").bytes()) == b""


def check_puts(obstore: Any, store: Any, served: Any) -> None:
    put = obstore.put(store, "put/x", b"1", mode="create")
    version = {name: value for name, value in put.items() if value is not None}
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "put/x", b"2", mode="create")
    obstore.put(store, "put/x", b"3", mode=version)
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.put(store, "put/x", b"4", mode=version)
    assert served.get("put/x") == b"3"
    obstore.copy(store, "put/x", "put/ä & <b>")
    assert bytes(obstore.get(store, "put/ä & <b>").bytes()) == b"3"
    assert served.sizes("put/").keys() == {"put/x", "put/ä & <b>"}
    obstore.delete(store, ["put/x", "put/ä & <b>"])
    assert served.sizes("put/") == {}


def check_listings(obstore: Any, store: Any, served: Any, page_keys: int) -> None:
    names = {f"pages/{number:02}": 1 for number in range(page_keys * 2 + 1)}
    for name in names:
        served.put(name, b"1")
    listed = [each for page in obstore.list(store, "pages", chunk_size=50) for each in page]
    assert {each["path"]: each["size"] for each in listed} == names == served.sizes("pages/")
    after = [each for page in obstore.list(store, "pages", offset="pages/03") for each in page]
    if not isinstance(served, AzureServer):  # which ignores it
        assert [each["path"] for each in after] == sorted(names)[4:]
    assert "pages" in obstore.list_with_delimiter(store)["common_prefixes"]
    assert len(obstore.list_with_delimiter(store, "pages")["objects"]) == len(names)


def check_parts(obstore: Any, store: Any, served: Any) -> None:
    data = b"x" * PART + b"y"
    obstore.put(store, "parts/done", data, use_multipart=True, chunk_size=PART)
    assert served.get("parts/done") == data
    assert served.uploads() == []
