"""--overwrite replaces what the same command wrote, every file of it, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED, JOB
from tests.ops.exports import model, noise
from zerotools.core.errors import BadRequest
from zerotools.io.output.output_marker import MARKER
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.consolidate import Options
from zerotools.ops.conversions.conversion import Conversion, check_output, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return model(tmp_path / "in", {"w": noise(4, 5)}, config__json="{}")


def export(source: Path, out: Path, *, overwrite: bool = False) -> None:
    perform_conversion(
        consolidate.prepare_export(source, out, Options()),
        budget=MemoryBudget(),
        overwrite=overwrite,
    )


def below(directory: Path) -> dict[str, bytes]:
    found = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}


def test_the_marker_lists_what_was_written(source: Path, tmp_path: Path) -> None:
    export(source, tmp_path / "out")
    marker = json.loads((tmp_path / "out" / MARKER).read_text())
    assert marker["command"] == "consolidate"
    sizes = {name: entry["size"] for name, entry in marker["files"].items()}
    files = below(tmp_path / "out")
    assert sizes == {name: len(data) for name, data in files.items() if name != MARKER}
    export(source, tmp_path / "out", overwrite=True)
    assert below(tmp_path / "out").keys() == files.keys()


def foreign_file(out: Path) -> str:
    (out / "thesis.txt").write_text("years of work")
    return r"out/thesis\.txt; move them elsewhere"


def foreign_adapter(out: Path) -> str:
    (out / "best-lora.safetensors").write_text("of another program")
    return r"out/best-lora\.safetensors; move"


def foreign_directory(out: Path) -> str:
    (out / "runs").mkdir()
    return "out/runs/; move"


def link(out: Path) -> str:
    (out / "config.json").rename(out.parent / "config.json")
    (out / "config.json").symlink_to(out.parent / "config.json")
    return r"out/config\.json; move"


def trained_on(out: Path) -> str:
    """Weights of the same names and sizes, as a fine-tuning saves them over those it began with."""
    weights = out / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 60 * 10**9))
    return r"model\.safetensors \(changed since it was written\)"


def no_marker(out: Path) -> str:
    (out / MARKER).unlink()
    return r"out has no \.zerotools-output\.json, .*remove .*/out \(rm -r\)"


def torn_marker(out: Path) -> str:
    (out / MARKER).write_text("{")
    return "cannot be read .*rm -r"


def other_marker(out: Path) -> str:
    (out / MARKER).write_text('{"schema": "of/another"}')
    return "does not have the schema zerotools.output/1"


@pytest.mark.parametrize(
    "change",
    [
        foreign_file,
        foreign_adapter,
        foreign_directory,
        link,
        trained_on,
        no_marker,
        torn_marker,
        other_marker,
    ],
)
def test_what_the_command_did_not_write_is_kept_and_named(
    source: Path, tmp_path: Path, change
) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out"
    export(source, out)
    said = change(out)
    before = below(out)
    with pytest.raises(BadRequest, match=said):
        check_output(consolidate.prepare_export(source, out, Options()), overwrite=True)
    with pytest.raises(BadRequest, match=said):
        export(source, out, overwrite=True)
    assert below(out) == before


def test_a_run_with_two_tags_is_no_output(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tags = DEEPSPEED / "z2-bf16-w2" / "checkpoint"
    shutil.copytree(tags, run)
    shutil.copytree(tags / "global_step2", run / "global_step4")
    before = below(run)
    with pytest.raises(BadRequest, match=r"run has no \.zerotools-output\.json"):
        export(source, run, overwrite=True)
    assert below(run) == before


def test_a_checkpoint_of_another_command_is_kept(source: Path, tmp_path: Path) -> None:
    resharded = reshard.prepare_reshard(JOB, tmp_path / "out", world_size=3)
    assert isinstance(resharded, Conversion)
    perform_conversion(resharded, budget=MemoryBudget(), overwrite=False)
    with pytest.raises(BadRequest, match="written by zerotools reshard, so --overwrite of zerotoo"):
        export(source, tmp_path / "out", overwrite=True)
    perform_conversion(resharded, budget=MemoryBudget(), overwrite=True)
    # what is made of an output does not take its marker for one of the checkpoint's own files
    done = convert.prepare_convert(tmp_path / "out", tmp_path / "again", "dcp", {"world_size": 1})
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=MemoryBudget(), overwrite=False, verify=True)
    marker = json.loads((tmp_path / "again" / MARKER).read_text())
    assert marker["command"] == "convert"
    manifest = json.loads((tmp_path / "out" / "MANIFEST.json").read_text())
    assert MARKER not in manifest["files"]


def test_an_empty_directory_needs_no_flag(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(source, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_and_a_link_are_never_replaced(
    source: Path, tmp_path: Path, overwrite: bool
) -> None:
    (tmp_path / "model.bin").write_text("weights")
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    for name in ("model.bin", "link"):
        with pytest.raises(BadRequest, match=f"{name} (exists|is (a symbolic|not a dir))"):
            export(source, tmp_path / name, overwrite=overwrite)
    assert (tmp_path / "model.bin").read_text() == "weights"
    assert list((tmp_path / "far").iterdir()) == []


def test_a_directory_that_only_looks_like_leftovers_is_kept(source: Path, tmp_path: Path) -> None:
    mine = tmp_path / "out.partial"
    mine.mkdir()
    (mine / "notes").write_text("of mine")
    with pytest.raises(BadRequest, match=r"staging directory .*out\.partial holds"):
        export(source, tmp_path / "out")
    assert (mine / "notes").read_text() == "of mine"
