"""Arrays are decoded to their elements, whatever form of zarr they have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.formats.elements import elements
from tests.formats.orbax.made_items import SMALL_NODES, made_item
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.orbax.tensorstore_arrays import ArrayDecoder

pytest.importorskip("tensorstore")

WHOLE = np.arange(7 * 6 * 4, dtype="f4").reshape(7, 6, 4)
V2: dict[str, dict[str, Any]] = {
    "blosc": {"compressor": {"id": "blosc"}},
    "gzip": {"compressor": {"id": "gzip"}},
    "plain": {"compressor": None},
    "column-major": {"compressor": None, "order": "F"},
    "directories": {"dimension_separator": "/"},
    "big-endian": {"dtype": ">f4"},
}
_INNER = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd"}]
V3: dict[str, dict[str, Any]] = {
    "flat-keys": {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}},
    "dotted-keys": {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}},
    "crc": {"codecs": [{"name": "bytes"}, {"name": "crc32c"}]},
    "transposed": {
        "codecs": [{"name": "transpose", "configuration": {"order": [2, 0, 1]}}, {"name": "bytes"}]
    },
    "sharded": {
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {"chunk_shape": [1, 3, 4], "codecs": _INNER},
            }
        ]
    },
}
PLAIN = {
    "zarr_format": 2,
    "shape": [6],
    "chunks": [2],
    "dtype": "<f4",
    "compressor": None,
    "filters": None,
    "fill_value": None,
    "order": "C",
}
FORMS = [(2, name, own) for name, own in V2.items()] + [(3, name, own) for name, own in V3.items()]


@pytest.mark.parametrize("config", [None, SMALL_NODES], ids=["files", "ocdbt"])
@pytest.mark.parametrize(("zarr", "name", "own"), FORMS, ids=[name for _, name, _ in FORMS])
def test_every_form_of_zarr_is_decoded(
    tmp_path: Path, zarr: int, name: str, own: dict[str, Any], config: dict[str, int] | None
) -> None:
    item = made_item(
        tmp_path / "items", {"w.kernel": WHOLE}, rows=2, config=config, zarr=zarr, metadata=own
    )
    checkpoint = formats.read(item)
    assert not checkpoint.problems
    assert len(list(checkpoint.tensors[Key("w.kernel", "param")].chunks)) == 4
    assert np.array_equal(elements(checkpoint, Key("w.kernel", "param")), WHOLE)


@pytest.mark.parametrize("zarr", [2, 3])
@pytest.mark.parametrize("config", [None, SMALL_NODES], ids=["files", "ocdbt"])
def test_scalars_and_small_types_are_decoded(
    tmp_path: Path, zarr: int, config: dict[str, int] | None
) -> None:
    arrays = {
        "scalar": np.array(3, "i4"),
        "half": np.arange(5).astype(ml_dtypes.bfloat16),
        "quarter": np.arange(5).astype(ml_dtypes.float8_e4m3fn),
        "mask": np.array([True, False, True]),
        "zeros": np.zeros((3, 2), "f4"),
    }
    checkpoint = formats.read(
        made_item(tmp_path / "items", arrays, rows=2, config=config, zarr=zarr)
    )
    assert not checkpoint.problems
    for name, array in arrays.items():
        found = elements(checkpoint, Key(name, "param"))
        assert (found.dtype, found.tobytes()) == (array.dtype, array.tobytes())


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"zarr_format": 4}, Unsupported, "cannot be opened: it was written in version 4 of its"),
        ({"dtype": "<c32"}, BadFile, r"cannot be opened \(.*\): the file is damaged; copy or down"),
        ({"chunks": [0]}, BadFile, r"cannot be opened \(.*\): the file is damaged; copy or down"),
        ({"shape": [2**40], "chunks": [2**40]}, Unsupported, "decodes chunks of at most"),
        ({"shape": [2**40]}, BadFile, r"has \d+ chunks, but zerotools reads at most"),
    ],
)
def test_a_description_that_no_array_has_is_refused(
    change: dict[str, Any], error: type[Exception], said: str
) -> None:
    assert ArrayDecoder(Path("/x"), "w", 2, json.dumps(PLAIN).encode()).array.grid == (3,)
    with pytest.raises(error, match=f"/x: .*the array w .*{said}|/x: a chunk of the .*{said}"):
        ArrayDecoder(Path("/x"), "w", 2, json.dumps({**PLAIN, **change}).encode())


def test_a_chunk_of_another_size_is_refused() -> None:
    decoder = ArrayDecoder(Path("/x"), "w", 2, json.dumps(PLAIN).encode())
    decoder.put(1, b"\0\0\x80\x3f\0\0\0\x40")
    assert bytes(decoder.decode(1)) == b"\0\0\x80\x3f\0\0\0\x40"
    decoder.put(1, bytearray(4))
    with pytest.raises(BadFile, match=r"/x: the array w cannot be read \(.*copy or download it"):
        decoder.decode(1)
    decoder.put(1, None)
    assert bytes(decoder.decode(1)) == bytes(8)  # not written: zeros
