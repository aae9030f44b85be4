"""Four real ranks: what torch saves, read by us, equals what torch puts together itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.formats.elements import elements
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import Unsupported
from zerotools.ops.inspection.inspect import inspect

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.golden.deepspeed_runs.launch import launch

    root = tmp_path_factory.mktemp("saved")
    launch("tests.formats.torchfile.save_with_torch", [], 4, root)
    return root


@pytest.mark.parametrize("name", ["meshes", "hf", "strided"])
def test_every_element_is_where_torch_has_it(saved: Path, name: str) -> None:
    found = formats.read(saved / name)
    assert inspect(found).problems == ()
    truth = load_file(saved / f"{name}.safetensors")
    assert {key.name for key in found.tensors} | set(found.aliases) == set(truth)
    for key, values in truth.items():
        whole = elements(found, Key(found.aliases.get(key, key), "param"))
        assert (whole.dtype, whole.shape) == (values.dtype, values.shape), key
        assert np.array_equal(whole, values), key


def test_a_lost_file_of_a_rank_is_known_by_those_beside_it(saved: Path, tmp_path: Path) -> None:
    """HuggingFaceStorageWriter, 4 ranks and 3 files of the model: no shape is taken of the rest."""
    truth = load_file(saved / "hf.safetensors")
    files = sorted((saved / "files").iterdir())
    assert inspect(formats.read(saved / "files")).problems == ()
    for number, lost in enumerate(files):
        copy = shutil.copytree(saved / "files", tmp_path / str(number))
        (copy / lost.name).unlink()
        found = formats.read(copy)
        assert inspect(found).problems != (), lost.name
        assert all(tensor.shape == truth[key.name].shape for key, tensor in found.tensors.items())


def test_the_tied_name_is_an_alias(saved: Path) -> None:
    assert formats.read(saved / "meshes").aliases["tied"] == "flat.0"


def test_flat_parameters_are_refused_by_name(saved: Path) -> None:
    said = r"flat parameters .LOCAL_STATE_DICT.*save with SHARDED_STATE_DICT"
    with pytest.raises(Unsupported, match=said):
        formats.read(saved / "local")
