"""Tensors that are not where they say, or larger than what they lie in, in torch's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.hostile.archives import FLOAT, state_dict
from tests.hostile.case import Case, Make
from tests.hostile.pickle_cases import beside_a_weight
from zerotools.core.checkpoint import Opaque
from zerotools.io.torchzip.pickle_values import Ordered, Storage

MODEL = "pytorch_model.bin"


def tensor(
    shape: Any = (2, 2), strides: Any = (2, 1), *, offset: Any = 0, numel: Any = 4, key: str = "0"
) -> Make:
    """A sound weight, and one as torch would rebuild it of these."""
    storage = Storage(key, FLOAT, numel)
    args = (storage, offset, shape, strides, False, Ordered())
    evil = Opaque("torch._utils", "_rebuild_tensor_v2", args, called=True)

    def make(directory: Path) -> Path:
        (directory / MODEL).write_bytes(state_dict({"evil": evil}))
        return directory

    return make


COUNT = "instead of a count"

CASES = (
    Case(
        "a stride out of the storage",
        tensor(strides=(2**40, 1)),
        r"needs \d+ bytes, but its storage '0' has 16",
    ),
    Case("a stride below 0", tensor(strides=(-1, 1)), f"-1 {COUNT}"),
    Case("a stride of 0 that makes a terabyte", tensor((2**38,), (0,)), "repeats elements"),
    Case("a size below 0", tensor((-2, 2)), f"-2 {COUNT}"),
    Case(
        "sizes whose product overflows", tensor((2**40, 2**40)), "bytes, but its storage '0' has 16"
    ),
    Case("a size that is no number", tensor(("a", 2)), f"'a' {COUNT}"),
    Case("an offset behind the storage", tensor(offset=2**62), "bytes, but its storage '0' has 16"),
    Case(
        "a storage of a terabyte, in 16 bytes",
        tensor((2**38,), (1,), numel=2**38),
        "storage '0' has 16 bytes, but its pickle gives",
    ),
    Case(
        "a storage that is larger than it says",
        tensor((2,), (1,), numel=2),
        "has 16 bytes, but its pickle gives 8",
    ),
    Case("a storage that is nowhere", tensor(key="7"), "has no record of storage '7'"),
    Case(
        "a storage above the archive",
        tensor(key="../../../etc/passwd"),
        "has no record of storage '../../../etc/passwd'",
    ),
    Case("65 dimensions", tensor((1,) * 65, (1,) * 65), "at most 64 counts"),
    Case("fewer strides than dimensions", tensor((2, 2), (1,)), "2 dimensions and 1 strides"),
    Case(
        "a Size of 2 ** 62",
        beside_a_weight(Opaque("torch", "Size", ((-5,),), called=True)),
        f"-5 {COUNT}",
    ),
)
