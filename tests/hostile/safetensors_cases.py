"""safetensors files and indexes that lie, and JSON that fills the memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.formats.safetensors.files import entry, file_bytes
from tests.hostile.case import VERIFY, WRITE, Case, Make

MODEL = "model.safetensors"
INDEX = "model.safetensors.index.json"
U8 = entry("U8", [4], 0, 4)
SOUND = file_bytes({"w": U8}, b"1234")
FILLS = "made to fill the memory; do not use it"
MEGABYTE = 10**6


def of(header: Any, data: bytes = b"") -> Make:
    """A model of one file."""

    def make(directory: Path) -> Path:
        (directory / MODEL).write_bytes(file_bytes(header, data))
        return directory

    return make


def claiming(length: int, there: int = 2) -> Make:
    """A file whose header says it has `length` bytes, of which `there` are: a hole in the file."""

    def make(directory: Path) -> Path:
        (directory / MODEL).write_bytes(length.to_bytes(8, "little") + b"{")
        os.truncate(directory / MODEL, 8 + there)
        return directory

    return make


def beside(name: str, text: bytes, weights: str = MODEL) -> Make:
    """A sound model, and a file of JSON."""

    def make(directory: Path) -> Path:
        (directory / weights).write_bytes(SOUND)
        (directory / name).write_bytes(text)
        return directory

    return make


def index(weight_map: Any) -> Make:
    """A sound file of another name than a model's, and an index."""
    return beside(INDEX, json.dumps({"weight_map": weight_map}).encode(), "shard.safetensors")


def _manifest(text: bytes) -> Make:
    def make(directory: Path) -> Path:
        path = directory / "m"
        path.mkdir()
        (path / MODEL).write_bytes(SOUND)
        (directory / "m.zerotools.json").write_bytes(text)
        return path

    return make


MANY_LISTS = b'{"a":[' + b"[]," * MEGABYTE + b"[]]}"

CASES = (
    Case(
        "tensors over one another",
        of({"a": U8, "b": entry("U8", [4], 2, 6)}, b"123456"),
        "they overlap",
    ),
    Case(
        "a gap between tensors",
        of({"a": U8, "b": entry("U8", [1], 5, 6)}, b"123456"),
        "they leave a hole",
    ),
    Case("bytes behind the last tensor", of({"a": U8}, b"12345"), "something was appended"),
    Case(
        "a tensor of a terabyte",
        of({"a": entry("U8", [2**40], 0, 2**40)}, b"1234"),
        "has .* bytes, but its header accounts for",
    ),
    Case(
        "a size below 0",
        of({"a": entry("U8", [-4], 0, 4)}, b"1234"),
        "lacks a dtype, a shape or data_offsets",
    ),
    Case(
        "sizes whose product overflows",
        of({"a": entry("U8", [2**40, 2**40], 0, 4)}, b"1234"),
        "needs .* bytes, but its data_offsets span 4",
    ),
    Case(
        "offsets below 0",
        of({"a": entry("U8", [4], -4, 0)}, b"1234"),
        "lacks a dtype, a shape or data_offsets",
    ),
    Case(
        "a key twice",
        of(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}'),
        "a key occurs twice",
    ),
    Case("text that is not UTF-8", of(b'{"\xff":{}}'), "its header is not JSON: 'utf-8'"),
    Case("100,000 lists in one another", of(b'{"a":' + b"[" * 10**5), "nested too deeply"),
    Case("a header of 2 ** 63 bytes", claiming(2**63), f"its header would have {2**63}"),
    Case(
        "a header of 100 MB, of which nothing is there",
        claiming(10**8, 10**8),
        f"its header has {10**8} bytes, but the file has only.*{FILLS}",
    ),
    Case("a header of a million lists", of(MANY_LISTS), FILLS),
    Case(
        "an index that names a file above it",
        index({"w": "../../etc/passwd"}),
        "not a file below its directory",
    ),
    Case(
        "an index that names an absolute file",
        index({"w": "/etc/passwd"}),
        "not a file below its directory",
    ),
    Case("an index of a million lists", beside(INDEX, MANY_LISTS, "shard.safetensors"), FILLS),
    Case("a config.json of a million lists", beside("config.json", MANY_LISTS), FILLS, WRITE),
    Case("a manifest of a million lists", _manifest(MANY_LISTS), FILLS, VERIFY, 1),
    Case(
        "a manifest of 100,000 lists in one another",
        _manifest(b"[" * 10**5),
        "is not JSON, so it is not a manifest: it is nested too deeply",
        VERIFY,
        1,
    ),
)
