"""Torch files that lie: whatever bytes change, reading ends in our errors and within the file."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.torchfile.saving import Saved, mesh_of, shard, wrapped
from tests.golden_files import TORCH
from tests.matrices import examples
from zerotools import formats
from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import ZerotoolsError
from zerotools.io.torchzip.pickle_values import Size
from zerotools.ops.inspection.inspect import inspect

FILES = (
    TORCH / "fsdp2-verl-w3" / "checkpoint" / "model_world_size_3_rank_1.pt",
    TORCH / "fsdp2-verl-w3" / "checkpoint" / "optim_world_size_3_rank_1.pt",
    TORCH / "fsdp1-sharded-bin-w2" / "checkpoint" / "pytorch_model_rank1.bin",
    TORCH / "training-file" / "checkpoint" / "checkpoint.pt",
    TORCH / "training-file" / "checkpoint" / "legacy.pt",
)


@pytest.mark.parametrize("original", FILES, ids=lambda path: path.name)
@settings(max_examples=examples(150))
@given(data=st.data())
def test_noise_gives_our_errors_only(
    tmp_path_factory: pytest.TempPathFactory, original: Path, data: st.DataObject
) -> None:
    noisy = bytearray(original.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        noisy[data.draw(st.integers(0, len(noisy) - 1))] = data.draw(st.integers(0, 255))
    root = tmp_path_factory.getbasetemp() / f"noisy-{original.name}"
    if not root.exists():
        shutil.copytree(original.parent, root)
    (root / original.name).write_bytes(noisy)
    with suppress(ZerotoolsError):
        inspect(formats.read(root / original.name))


# One value of a DTensor's description is replaced by each of these.
STRANGE: tuple[Any, ...] = (
    None, True, -1, 2**70, 1.5, "", b"", (), [], {}, [[]], (None,), (2**62,) * 3, (-1,),
    Size((2**62, 2**62)), Opaque("x", "y"), Opaque("x", "y", state=(1, 2)), {"dim": 9},
)  # fmt: skip


def _dtensor(file: Saved) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The dicts of a DTensor: its own, its spec's, its mesh's and its placement's."""
    placement = shard(0)
    made = file.dtensor([[1.0, 2.0]], (2, 2), [placement], mesh_of((2,), (0,), 0))
    own = made.args[3][1]
    spec = own["_spec"].state
    return own, spec, spec["mesh"].state, placement.state


@pytest.mark.parametrize("table", range(4))
@pytest.mark.parametrize("strange", STRANGE, ids=repr)
def test_a_dtensor_described_by_nonsense(tmp_path: Path, table: int, strange: Any) -> None:
    for key in _dtensor(Saved())[table]:
        file = Saved()
        dicts = _dtensor(file)
        dicts[table][key] = strange
        tree = {"w": wrapped("torch.distributed.tensor", "DTensor", (None, dicts[0]))}
        path = file.write(tmp_path / "model_world_size_2_rank_0.pt", tree)
        with suppress(ZerotoolsError):
            inspect(formats.read(path))


@pytest.mark.parametrize("strange", STRANGE, ids=repr)
def test_a_sharded_tensor_described_by_nonsense(tmp_path: Path, strange: Any) -> None:
    def made(file: Saved) -> tuple[tuple[Any, ...], list[dict[str, Any]]]:
        state = file.sharded([[1.0, 2.0]], [0, 0], (2, 2), 0, 2).args[3]
        held = state[0][0].state[1]
        return state, [held, held["metadata"].state[1], state[1].state, state[2].state]

    for table, keys in enumerate(made(Saved())[1]):
        for key in keys:
            file = Saved()
            state, dicts = made(file)
            dicts[table][key] = strange
            kind = ("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")
            path = file.write(tmp_path / "model_rank0.pt", {"w": wrapped(*kind, state)})
            with suppress(ZerotoolsError):
                inspect(formats.read(path))


@pytest.mark.parametrize("groups", [[None], [3], [[]], [{"params": [None]}], [{"params": 3}], []])
def test_an_optimizer_with_strange_groups(tmp_path: Path, groups: list[Any]) -> None:
    file = Saved()
    state = {0: {"m": file.tensor([1.0])}, (1, 2): file.tensor([2.0]), "x": 4}
    tree = {"model": {"w": file.tensor([1.0])}, "o": {"state": state, "param_groups": groups}}
    inspect(formats.read(file.write(tmp_path / "a.pt", tree)))
