"""Megatron checkpoints with flipped bytes, planted commands, and sizes that no model has."""

from __future__ import annotations

import os
import pickle
import shutil
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.megatron.golden import run_of
from tests.io.torchzip.archives import zip_bytes
from tests.matrices import examples
from zerotools import formats
from zerotools.cli.main import build
from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import BadFile, ZerotoolsError
from zerotools.io.distcp.metadata import _Reader
from zerotools.io.files.regular_files import read_regular
from zerotools.io.torchzip.unpickle import loads
from zerotools.ops.inspection.inspect import inspect

DIST = "megatron-core-0.15.2/dense-tp2-model-space"
RANKS = "megatron-core-0.16.1/legacy-tp2-dp2-distributed"
FILES = {
    DIST: (".metadata", "common.pt", "metadata.json", "__0_0.distcp"),
    RANKS: ("mp_rank_00/model_optim_rng.pt", "mp_rank_01/distrib_optim.pt"),
}


class Command:
    """Pickles as a shell command."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return os.system, (self._command,)


def _copied(case: str, to: Path) -> Path:
    return Path(shutil.copytree(run_of(case), to)) / "iter_0000010"


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("megatron")
    return {case: _copied(case, root / str(number)) for number, case in enumerate(FILES)}


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([(c, f) for c, files in FILES.items() for f in files]), st.data())
def test_flipped_bytes_give_our_errors_only(
    copies: dict[str, Path], which: tuple[str, str], data: st.DataObject
) -> None:
    case, name = which
    path = copies[case] / name
    original = path.read_bytes()
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    try:
        with suppress(ZerotoolsError):
            inspect(formats.read_any(copies[case]))
    finally:
        path.write_bytes(original)


def _archive(tree: Any) -> bytes:
    return zip_bytes({"common/data.pkl": pickle.dumps(tree, 2), "common/version": b"3\n"})


@pytest.mark.parametrize("planted", ["args", "iteration", "optimizer", "itself"])
def test_a_command_in_common_pt_is_never_run(tmp_path: Path, planted: str) -> None:
    path = _copied(DIST, tmp_path / "run")
    mark = tmp_path / "ran"
    command = Command(f"touch {mark}")
    tree: Any = {"iteration": 10, planted: command} if planted != "itself" else command
    (path / "common.pt").write_bytes(_archive(tree))
    checkpoint = formats.read(path)
    found = inspect(checkpoint)
    assert bool(found.problems) == (planted == "itself")
    assert len(checkpoint.tensors) == 60
    assert not mark.exists()
    done = CliRunner().invoke(build(), ["inspect", str(path)])
    assert done.exit_code in (0, 1), done.output
    assert not mark.exists()


def test_arguments_that_contain_themselves(tmp_path: Path) -> None:
    path = _copied(DIST, tmp_path / "run")
    args = Namespace(num_layers=2, params_dtype="bfloat16")
    args.itself = args
    groups = [{"lr": 0.1}]
    groups[0]["groups"] = groups  # type: ignore[assignment]
    tree = {"args": args, "iteration": 10, "optimizer": {"optimizer": {"param_groups": groups}}}
    (path / "common.pt").write_bytes(_archive(tree))
    for command in ("inspect", "inspect --json"):
        done = CliRunner().invoke(build(), [*command.split(), str(path)])
        assert done.exit_code == 0, done.output
    said = formats.training_of(formats.read(path)).client["args"]
    assert isinstance(said["itself"], Opaque)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((3, 48, 16), "but its stored parts have the shape"),
        ((2, -48, -16), "as sizes or offsets of"),
        ((2**70,), "as sizes or offsets of"),
        ("abc", "as sizes or offsets of"),
        ({}, "as sizes or offsets of"),
    ],
)
def test_true_shapes_that_cannot_be(shape: Any, said: str) -> None:
    path = run_of(DIST) / "iter_0000010" / ".metadata"
    tree = loads(read_regular(path, 2**20), source=path)
    key = "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight"
    tree.state["mcore_data"][key]["nd_reformulated_orig_global_shape"] = shape
    with pytest.raises(BadFile, match=said):
        _Reader(path).metadata(tree)
