"""Deltas of checkpoints with the names of other programs, which the options of `consolidate` give
the names of the Hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import zerotools
from tests.forked_programs import forked_programs
from tests.golden_files import GOLDEN
from tests.ops.delta.pairs import loaded, write_model

MEGATRON = GOLDEN / "megatron-core-0.16.1" / "hub-llama" / "checkpoint"


@pytest.fixture(autouse=True)
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """transformers is asked once for each of two tests."""
    with forked_programs(tmp_path_factory.mktemp("programs")):
        yield


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """The model of the Megatron checkpoint, in the layout of the Hub."""
    zerotools.consolidate(MEGATRON, tmp_path / "hub", dtype="fp32", map_to="hf")
    return tmp_path / "hub"


def stepped(hub: Path) -> Path:
    """The model with another final norm."""
    tensors = dict(load_file(hub / "model.safetensors"))
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 2
    config = json.loads((hub / "config.json").read_text())
    return write_model(hub.with_name("stepped"), tensors, **config)


def test_a_checkpoint_of_megatron_is_either_side(hub: Path, tmp_path: Path) -> None:
    with pytest.raises(zerotools.BadRequest, match="does not fit the llama model"):
        zerotools.delta(MEGATRON, MEGATRON, tmp_path / "d")
    zerotools.delta(MEGATRON, MEGATRON, tmp_path / "same", map_to="hf", dtype="fp32")
    zerotools.apply(MEGATRON, tmp_path / "same", out=tmp_path / "made", map_to="hf")
    assert loaded(tmp_path / "made") == loaded(hub)
    b = stepped(hub)
    found = zerotools.delta(MEGATRON, b, tmp_path / "d", map_to="hf", map_from="megatron")
    assert 0 < found.changed <= 16, "of the norm alone"
    zerotools.apply(MEGATRON, tmp_path / "d", tmp_path / "after", map_to="hf")
    assert loaded(tmp_path / "after") == loaded(b)
    zerotools.delta(b, MEGATRON, tmp_path / "back", map_to="hf", map_from="megatron", dtype="fp32")
    zerotools.apply(b, tmp_path / "back")
    assert loaded(b) == loaded(hub), "a model of the Hub needs no options"


def test_a_checkpoint_of_maxtext_is_either_side(hub: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(hub, tmp_path / "bare")
    jax = tmp_path / "jax"
    zerotools.convert(bare, jax, to="orbax", map_to="maxtext")
    (jax / "config.json").unlink(missing_ok=True)
    given: dict[str, Any] = {"map_to": "hf", "map_from": "maxtext", "config_dir": hub}
    b = stepped(hub)
    for path in (jax, hub):
        found = zerotools.delta(path, b, tmp_path / "d", overwrite=True, **given)
        assert any("were not used" in note for note in found.notes) == (path == hub)
        zerotools.apply(path, tmp_path / "d", tmp_path / "made", overwrite=True, **given)
        assert loaded(tmp_path / "made") == loaded(b)
    zerotools.delta(b, jax, tmp_path / "back", dtype="fp32", **given)
    zerotools.apply(b, tmp_path / "back")
    assert loaded(b).keys() == loaded(hub).keys()
    zerotools.consolidate(jax, tmp_path / "of-jax", dtype="fp32", **given)
    assert loaded(b) == loaded(tmp_path / "of-jax")


def test_names_are_changed_as_consolidate_changes_them(hub: Path, tmp_path: Path) -> None:
    config = json.loads((hub / "config.json").read_text())
    weights = load_file(hub / "model.safetensors").items()
    cases: list[tuple[Callable[[str], str], dict[str, Any], bool]] = [
        (lambda name: f"net.{name}", {"strip_prefix": "net."}, False),  # such wrappers are known
        (lambda name: name.replace("layers", "blocks"), {"rename": "blocks=layers"}, True),
    ]
    for named, given, is_needed in cases:
        names = {named(name): np.ascontiguousarray(array) for name, array in weights}
        b = write_model(tmp_path / f"b-{is_needed}", names, **config)
        found = zerotools.delta(hub, b, tmp_path / "d", dtype="fp32", overwrite=True, **given)
        assert (found.changed, found.new_tensors) == (0, ())
        assert any("were not used" in note for note in found.notes) != is_needed
    zerotools.delta(b, b, tmp_path / "own", no_check_names=True)
    zerotools.apply(b, tmp_path / "own", tmp_path / "made", no_check_names=True)
    assert loaded(tmp_path / "made") == loaded(b)
    with pytest.raises(zerotools.BadRequest, match="--map-from needs --map-to"):
        zerotools.delta(hub, hub, tmp_path / "e", map_from="megatron")
