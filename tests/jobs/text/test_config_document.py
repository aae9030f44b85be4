from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.text.config_document import read_text


def refused(path: Path) -> str:
    with pytest.raises(BadRequest) as caught:
        read_text(path, "DeepSpeed config")
    return str(caught.value)


def test_a_byte_order_mark_is_left_off(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(path, "config") == "{}"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{\n"a": "\xff"}', "ds.json:2: is not UTF-8 text (byte 8); save it as UTF-8"),
        ("{}".encode("utf-16"), "ds.json: is UTF-16; save it as UTF-8"),
    ],
)
def test_what_is_not_utf_8(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(content)
    assert refused(path).endswith(said)


def test_a_file_of_100_megabytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    assert "may have at most 1048576 bytes" in refused(path)


def test_what_is_not_there_or_no_file(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.json").endswith("there is no such DeepSpeed config")
    assert refused(tmp_path).endswith("cannot be read (Is a directory)")
