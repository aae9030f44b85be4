"""The torch.save format of before 1.6, against torch's own writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zerotools.core.errors import BadFile
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile


def saved(path: Path) -> TorchFile:
    import torch

    tensor = torch.arange(12.0).reshape(3, 4)
    tree = {"a": tensor, "turned": tensor.t(), "big": torch.zeros(700_000), "step": 7}
    torch.save(tree, path, _use_new_zipfile_serialization=False)
    return TorchFile.open(path.parent, path.name)


@pytest.mark.torch
def test_tensors_lie_where_they_are_said_to(tmp_path: Path) -> None:
    file = saved(tmp_path / "old.pt")
    turned = file.tree["turned"]
    assert isinstance(turned, StoredTensor)
    assert (turned.shape, turned.strides) == ((4, 3), (1, 4))
    data = (tmp_path / "old.pt").read_bytes()
    found = np.frombuffer(data, np.float32, 12, file.payload(turned.storage))
    assert found.tolist() == list(range(12))
    assert file.tree["step"] == 7


@pytest.mark.torch
def test_a_file_that_ends_inside_a_storage(tmp_path: Path) -> None:
    saved(tmp_path / "old.pt")
    data = (tmp_path / "old.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[:-100])
    with pytest.raises(BadFile, match=r"cut\.pt: storage .* is truncated"):
        TorchFile.open(tmp_path, "cut.pt")


@pytest.mark.torch
def test_a_file_that_ends_inside_a_pickle(tmp_path: Path) -> None:
    saved(tmp_path / "old.pt")
    data = (tmp_path / "old.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[:200])
    with pytest.raises(BadFile, match=r"cut\.pt: its pickle"):
        TorchFile.open(tmp_path, "cut.pt")


@pytest.mark.torch
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_newer_pickle_protocols(tmp_path: Path, protocol: int) -> None:
    import torch

    torch.save(
        {"a": torch.arange(6.0)},
        tmp_path / "new.pt",
        pickle_protocol=protocol,
        _use_new_zipfile_serialization=False,
    )
    file = TorchFile.open(tmp_path, "new.pt")
    stored = file.tree["a"]
    data = (tmp_path / "new.pt").read_bytes()
    assert np.frombuffer(data, np.float32, 6, file.payload(stored.storage)).tolist() == [*range(6)]
