"""consolidate, reshard and convert from Python: what they write, return and report."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from click.testing import CliRunner

import zerotools
from tests.golden_files import DEEPSPEED, FOREIGN, TORCH
from tests.io.stores.far import put_directory, served
from zerotools.cli.main import build
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.staging import partial_of

ZERO2, ZERO3 = (DEEPSPEED / f"{stage}-bf16-w2" / "checkpoint" for stage in ("z2", "z3"))


def content(directory: Path) -> dict[str, bytes]:
    files = (each for each in directory.rglob("*") if each.is_file() and each.name != MARKER)
    return {str(each.relative_to(directory)): each.read_bytes() for each in files}


def by_command(*words: object) -> dict[str, object]:
    done = CliRunner().invoke(build(), [*map(str, words), "--json"], standalone_mode=False)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    assert found.pop("schema") == f"zerotools.{words[0]}/1"
    return found


def test_a_function_writes_and_returns_what_its_command_does(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    done = zerotools.consolidate(str(ZERO3), one, dtype="fp16", exclude="head.*")
    told = by_command("consolidate", ZERO3, other, "--dtype", "fp16", "--exclude", "head.*")
    assert content(one) == content(other)
    same = {**done.to_json(), "destination": str(other), "seconds": told["seconds"]}
    assert json.loads(json.dumps(same)) == told
    assert (done.written, done.destination, done.dry_run) == (True, one, False)
    assert set(done.files) == {"model.safetensors"}
    assert done.seconds > 0
    with pytest.raises(FrozenInstanceError):
        done.tensors = 1  # type: ignore[misc]


def test_a_dry_run_returns_the_same_kind_of_value_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    planned = zerotools.reshard(ZERO2, out, world_size=3, dry_run=True)
    assert not any(tmp_path.iterdir())
    done = zerotools.reshard(ZERO2, out, world_size=3)
    assert type(planned) is type(done)
    assert (planned.written, planned.files) == (False, done.files)
    assert (planned.copies or 0) > 0
    assert zerotools.inspect(out).world_size == done.world_size == 3


def test_nothing_is_done_where_nothing_changes(tmp_path: Path) -> None:
    done = zerotools.reshard(ZERO2, tmp_path / "out", world_size=2)
    assert (done.unchanged, done.written, done.destination) == (True, False, None)
    assert zerotools.reshard(ZERO2, tmp_path / "out", world_size=2, force=True).written


def test_what_the_target_cannot_hold_is_dropped(tmp_path: Path) -> None:
    done = zerotools.convert(ZERO2, tmp_path / "out", to="safetensors")
    assert {"exp_avg", "exp_avg_sq"} <= {each.what for each in done.dropped}
    with pytest.raises(zerotools.BadRequest, match="--map-to and --to job exclude"):
        zerotools.convert(ZERO2, tmp_path / "job", to="job", map_to="hf")


def test_parts_make_the_whole(tmp_path: Path) -> None:
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    first = zerotools.reshard(ZERO2, parts, world_size=3, part=(1, 2))
    assert (first.written, first.part and first.part.missing) == (False, (2,))
    assert zerotools.reshard(ZERO2, parts, world_size=3, part="2/2").written
    zerotools.reshard(ZERO2, whole, world_size=3)
    assert content(parts) == content(whole)


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    told: list[zerotools.ProgressUpdate] = []
    zerotools.consolidate(ZERO3, tmp_path / "out", progress=told.append, verify=True)
    assert {each.stage for each in told} == {"consolidate"}
    assert [each.done for each in told] == sorted(each.done for each in told)
    assert told[-1].done == told[-1].total


def test_a_bar_is_text_where_there_is_no_notebook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zerotools.consolidate(ZERO3, tmp_path / "out", progress=True)
    assert "consolidate: 100%" in capsys.readouterr().err
    zerotools.consolidate(ZERO3, tmp_path / "out", overwrite=True)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(zerotools.BadRequest, match="must be a callable, True or False"):
        zerotools.consolidate(ZERO3, tmp_path / "3", progress="yes")  # type: ignore[arg-type]


def test_an_interrupt_leaves_what_resume_continues(tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"

    def interrupt(now: zerotools.ProgressUpdate) -> None:
        if now.done > now.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zerotools.reshard(ZERO2, out, world_size=3, progress=interrupt, workers=1)
    assert partial_of(out).is_dir()
    assert not out.exists()
    assert zerotools.reshard(ZERO2, out, world_size=3, resume=True).written
    zerotools.reshard(ZERO2, whole, world_size=3)
    assert content(out) == content(whole)
    assert not partial_of(out).exists()


def test_what_is_wrong_raises_what_the_command_ends_with(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(zerotools.BadRequest, match="exists; choose another output"):
        zerotools.consolidate(ZERO3, tmp_path / "full")
    with pytest.raises(zerotools.BadFile):
        zerotools.consolidate(Path(__file__), tmp_path / "out")
    with pytest.raises(zerotools.BadRequest, match="stage=4: must be one of 1, 2, 3"):
        zerotools.reshard(ZERO2, tmp_path / "out", world_size=2, stage=4)  # type: ignore[arg-type]


def test_addresses_of_stores_are_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(monkeypatch) as store:
        put_directory(store, ZERO2, "in")
        zerotools.reshard("gs://checkpoints/in", "gs://checkpoints/out", world_size=3)
        assert zerotools.inspect("gs://checkpoints/out").world_size == 3
        assert zerotools.verify("gs://checkpoints/out").verdict != "faulty"
        zerotools.reshard("gs://checkpoints/in", tmp_path / "here", world_size=3)
        names = [name for name in store.sizes("out/") if not name.endswith(MARKER)]
        assert {name.removeprefix("out/"): store.get(name) for name in names} == content(
            tmp_path / "here"
        )


def test_the_order_of_an_optimizer_is_no_matter_where_weights_alone_are_read(
    tmp_path: Path,
) -> None:
    run = FOREIGN / "hf-trainer" / "checkpoint"
    done = zerotools.consolidate(run, tmp_path / "model", no_check_names=True)
    also = zerotools.convert(run, tmp_path / "also", to="safetensors", no_check_names=True)
    checked = zerotools.verify(run, fast=True)
    said = [*done.notes, *also.notes, *checked.notes]
    assert not [note for note in said if "--order" in note or "by number" in note]
    assert [note for note in zerotools.inspect(run).notes if "--order" in note]


def test_a_file_of_no_ranks_is_written_for_one(tmp_path: Path) -> None:
    file = TORCH / "training-file" / "checkpoint" / "checkpoint.pt"
    done = zerotools.convert(file, tmp_path / "one", to="dcp", weights_only=True)
    assert [
        note for note in done.notes if note.startswith("the output is written for 1 rank, because ")
    ]
    done = zerotools.convert(file, tmp_path / "two", to="dcp", weights_only=True, world_size=2)
    assert not [note for note in done.notes if "written for 1 rank" in note]
