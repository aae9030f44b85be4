from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.rank.check_same_files import PLACES, check_same_files, sampled_digest
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.rank.rank_settings import Rank

pytestmark = pytest.mark.torch


@dataclass
class Gathering:
    """Rank 0 of two nodes of two ranks, of which the others said this."""

    others: list[dict[str, str]]
    rank: Rank = field(default_factory=lambda: Rank(0, 0, 4, 0, 2))

    def gathered(self, value: dict[str, str]) -> list[dict[str, str]]:
        return [value, *self.others]


def check(files: dict[str, Path], others: list[dict[str, str]]) -> None:
    check_same_files(files, cast(WorldGroup, cast(Any, Gathering(others))))


def test_a_change_of_size_or_in_a_sample_tells(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    data = bytearray(range(256)) * 4096
    path.write_bytes(data)
    known = sampled_digest(path)
    for at in (0, len(data) - 1, len(data) * 7 // PLACES):
        changed = bytearray(data)
        changed[at] ^= 1
        path.write_bytes(changed)
        assert sampled_digest(path) != known
    path.write_bytes(data[:-1])
    assert sampled_digest(path) != known
    path.write_bytes(data)
    assert sampled_digest(path) == known


def test_which_node_has_another_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    same = {"a.txt": sampled_digest(path)}
    check({"a.txt": path}, [{}, same, {}])
    with pytest.raises(BadRequest, match=r"a\.txt differs between node 1 and node 0"):
        check({"a.txt": path}, [{}, {"a.txt": "0" * 16}, {}])
    with pytest.raises(BadRequest, match=r"a\.txt is missing on node 1"):
        check({"a.txt": path}, [{}, {}, {}])
    with pytest.raises(BadRequest, match=r"c\.txt on node 0 cannot be read: No such file"):
        check({"c.txt": tmp_path / "c.txt"}, [{}, {"c.txt": "0"}, {}])
    with pytest.raises(BadRequest, match=r"b\.txt is missing on node 0"):
        check({"a.txt": path}, [{}, {**same, "b.txt": "0"}, {}])
