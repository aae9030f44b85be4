"""Headers of token files, as numpy writes them and as they should not be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.token_files import TokenArray, read_token_header


@pytest.mark.parametrize("kind", ["uint16", "uint32", "int32", "int64"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_what_numpy_writes(tmp_path: Path, kind: str, version: tuple[int, int]) -> None:
    path = tmp_path / "ids.npy"
    ids = np.arange(7, dtype=kind)
    with path.open("wb") as file:
        np.lib.format.write_array(file, ids, version=version)
    found = read_token_header(path, None)
    assert (found.count, found.type) == (7, kind)
    assert path.read_bytes()[found.offset :] == ids.tobytes()


def test_bare_numbers_have_the_stated_type(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    path.write_bytes(bytes(12))
    assert read_token_header(path, "uint16") == TokenArray(path, 0, 6, "uint16")
    with pytest.raises(BadFile, match="12 bytes, but needs a multiple of 8"):
        read_token_header(path, "int64")
    with pytest.raises(BadFile, match=r"set data\.token_type"):
        read_token_header(path, None)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros(3, "f4"), "holds values of type '<f4', but token ids are uint16"),
        (np.zeros(3, ">u2"), "holds values of type '>u2'"),
        (np.zeros((2, 3), "u2"), r"has shape \(2, 3\), but token ids need one dimension"),
    ],
)
def test_an_array_of_something_else_is_refused(tmp_path: Path, array: Any, sentence: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(BadFile, match=sentence):
        read_token_header(tmp_path / "a.npy", None)


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(100, "u2"))
    whole = path.read_bytes()
    for damaged, sentence in (
        (whole[:-1], "327 bytes, but its header needs 328; copy or save"),
        (b"no numpy" + whole, "is not a .npy file"),
        (whole.replace(b"descr", b"wrong"), "its header does not describe a .npy array"),
        (whole[:8] + b"\xff\xff" + whole[10:], "its header does not describe a .npy array"),
        (b"", "is not a .npy file"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(BadFile, match=sentence):
            read_token_header(path, None)
