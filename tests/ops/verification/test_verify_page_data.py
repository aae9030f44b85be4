"""What the page of a verification shows of whole, damaged and unknown checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import zerotools
from tests.cli.command_process import zerotools as command
from tests.golden_files import DEEPSPEED, JOB
from tests.ops.picture.test_html_page import values_of
from tests.ops.verification.damage import copy, flip
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.ops.verification.verify_page_data import DAMAGED, UNKNOWN, WHOLE

ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


def shown(path: Path, **options: Any) -> dict[str, Any]:
    found = json.loads(values_of(zerotools.verify(path, **options).to_html()))
    assert len(found["checks"]["files"]) == len(found["files"])
    assert len(found["checks"]["tensors"]) == len(found["tensors"])
    for (_, _, strip, _), (_, _, states) in zip(
        found["files"], found["checks"]["files"], strict=True
    ):
        assert (strip is None) == (states is None)
        assert strip is None or sum(strip[::2]) == sum(states[::2])
    return found  # type: ignore[no-any-return]


def test_all_of_a_job_is_whole() -> None:
    found = shown(JOB)
    assert found["verdict"] == "WHOLE"
    assert found["is_whole"]
    assert {state for state, *_ in found["checks"]["files"]} == {WHOLE}
    assert set(found["checks"]["tensors"]) == {WHOLE}
    names = {name for name, *_ in found["files"]}
    assert {"job.json", "dcp/__0_0.distcp"} <= names


def test_nothing_is_known_that_was_not_read() -> None:
    found = shown(ZERO3, fast=True)
    assert found["is_unknown"]
    assert found["verdict"] == (
        "CANNOT TELL: no problem in the structure; bytes were not checked (--fast)"
    )
    assert set(found["checks"]["tensors"]) == {UNKNOWN}
    assert all("--fast" in why for _, why, _ in found["checks"]["files"])


def test_a_flipped_byte_is_red_where_it_lies(tmp_path: Path) -> None:
    path = copy(ZERO3, tmp_path)
    checkpoint = formats.read_any(path)
    key = Key("embed.weight", "exp_avg")
    chunk = checkpoint.tensors[key].chunks[-1]
    file = checkpoint.root / chunk.file
    data = bytearray(file.read_bytes())
    data[chunk.offset] ^= 1
    file.write_bytes(data)
    found = shown(path)
    assert found["verdict"] == "DAMAGED"
    (index,) = [n for n, row in enumerate(found["files"]) if row[0].endswith(chunk.file)]
    state, why, strip = found["checks"]["files"][index]
    assert state == DAMAGED
    assert "its bytes have changed" in why
    cells, width = [], len(data) / sum(strip[::2])
    for number, value in zip(strip[::2], strip[1::2], strict=True):
        cells += [value] * number
    assert cells[int(chunk.offset / width)] == DAMAGED
    assert cells.count(WHOLE) > cells.count(DAMAGED) > 0
    states = dict(zip(checkpoint.tensors, found["checks"]["tensors"], strict=True))
    assert states[key] == DAMAGED
    assert WHOLE in states.values()


def test_a_damaged_record_of_a_job_is_red_where_it_lies(tmp_path: Path) -> None:
    """The manifest of the job has another digest of the whole file."""
    path = copy(JOB, tmp_path)
    checkpoint = formats.read_any(path)
    key, tensor = max(checkpoint.tensors.items(), key=lambda item: item[1].nbytes)
    chunk = tensor.chunks[0]
    flip(checkpoint.root / chunk.file, chunk.offset)
    found = shown(path)
    (index,) = [n for n, row in enumerate(found["files"]) if row[0].endswith(chunk.file)]
    state, why, strip = found["checks"]["files"][index]
    assert state == DAMAGED
    assert "CRC-32" in why
    assert {*strip[1::2]} == {DAMAGED, WHOLE}
    states = dict(zip(checkpoint.tensors, found["checks"]["tensors"], strict=True))
    assert states[key] == DAMAGED
    assert {*states.values()} == {DAMAGED, WHOLE}


def test_a_missing_file_and_its_tensors_are_damaged(tmp_path: Path) -> None:
    path = copy(JOB, tmp_path)
    (path / "dcp" / "__1_0.distcp").unlink()
    found = shown(path)
    (index,) = [n for n, row in enumerate(found["files"]) if row[0] == "dcp/__1_0.distcp"]
    assert found["checks"]["files"][index][0] == DAMAGED
    assert found["checks"]["files"][index][2] is None
    assert DAMAGED in found["checks"]["tensors"]


def test_files_of_another_part_are_unknown() -> None:
    parts = [shown(ZERO3, part=f"{n}/2") for n in (1, 2)]
    for states in zip(*(part["checks"]["files"] for part in parts), strict=True):
        assert sorted(state for state, *_ in states) == [WHOLE, UNKNOWN]


def test_the_command_writes_it_before_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    done = command("verify", JOB, "--html", path)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-2].startswith(f"page: {path} (")
    assert done.stdout.endswith("WHOLE\n")
    refused = command("verify", JOB, "--html", path, "--dry-run")
    assert refused.returncode == 2
    assert "leave out --html" in refused.stderr


def test_a_manifest_proves_the_files_next_to_a_damaged_one(tmp_path: Path) -> None:
    shards = {f"model-0000{n}-of-00003.safetensors": f"layers.{n}.weight" for n in (1, 2, 3)}
    for file, name in shards.items():
        save_file({name: np.arange(64, dtype=np.float32)}, tmp_path / file)
    index = {"metadata": {}, "weight_map": {name: file for file, name in shards.items()}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    zerotools.verify(tmp_path, write_manifest=True)
    first, second, _ = shards
    flip(tmp_path / second, 200)
    flip(tmp_path / second, 240)
    (tmp_path / "later.json").write_text("{}")
    found = shown(tmp_path)
    states = {
        row[0]: check for row, check in zip(found["files"], found["checks"]["files"], strict=True)
    }
    assert states.pop("later.json")[:2] == [UNKNOWN, "no checksums"]
    state, why, _ = states.pop(second)
    assert state == DAMAGED
    assert f"the changed tensors are {shards[second]}" in why
    assert set(states) == {
        first,
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    }
    assert all(each[:2] == [WHOLE, ""] for each in states.values())
    assert found["checks"]["tensors"] == [WHOLE, DAMAGED, WHOLE]
    assert found["notes"] == ["later.json: no checksums"]
    told = command("verify", tmp_path).stdout
    assert "no checksums and no manifest) in 1 file: later.json" in told


def test_a_manifest_proves_the_tensors_next_to_a_damaged_one(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    weights = {name: np.arange(64, dtype=np.float32) for name in ("first", "second", "third")}
    save_file(weights, file)
    zerotools.verify(tmp_path, write_manifest=True)
    tensors = formats.read_any(tmp_path).tensors
    offset = tensors[Key("second", "param")].chunks[0].offset
    flip(file, offset)
    found = shown(tmp_path)
    states = dict(zip((key.name for key in tensors), found["checks"]["tensors"], strict=True))
    assert states == {"first": WHOLE, "second": DAMAGED, "third": WHOLE}
    ((state, why, strip),) = found["checks"]["files"]
    assert state == DAMAGED
    assert "the changed tensors are second" in why
    assert strip[1::2] == [UNKNOWN, WHOLE, DAMAGED, WHOLE]


def test_which_bytes_of_a_changed_file_are_damaged_may_be_unknown(tmp_path: Path) -> None:
    """The record of an output has digests of files alone."""
    zerotools.consolidate(JOB, tmp_path / "model", verify=True)
    (tmp_path / "model.zerotools.json").unlink()
    (file,) = (tmp_path / "model").glob("*.safetensors")
    flip(file, file.stat().st_size - 1)
    found = shown(tmp_path / "model")
    assert found["verdict"] == "DAMAGED"
    assert set(found["checks"]["tensors"]) == {UNKNOWN}
    states = {
        row[0]: check for row, check in zip(found["files"], found["checks"]["files"], strict=True)
    }
    state, why, strip = states[file.name]
    assert (state, strip[1::2]) == (DAMAGED, [UNKNOWN])
    assert "its bytes have changed" in why


def test_only_located_damage_is_red_in_strips(tmp_path: Path) -> None:
    """A missing rank leaves tensors incomplete, and a negative square has its cause in a record:
    the bytes of the other files are whole.
    """
    lost, torn = copy(ZERO3, tmp_path / "lost"), copy(ZERO3, tmp_path / "torn")
    key = Key("embed.weight", "exp_avg_sq")
    chunk = formats.read_any(torn).tensors[key].chunks[-1]
    flip(formats.read_any(torn).root / chunk.file, chunk.offset + 3, 0x80)
    (formats.read_any(lost).root / chunk.file).unlink()
    for path in (lost, torn):
        found = shown(path)
        assert found["verdict"] == "DAMAGED"
        for (name, *_), (state, _, strip) in zip(
            found["files"], found["checks"]["files"], strict=True
        ):
            is_faulty = name.endswith(chunk.file)
            assert state == (DAMAGED if is_faulty else WHOLE), name
            assert is_faulty or strip[1::2] == [WHOLE], name
        states = dict(zip(formats.read_any(path).tensors, found["checks"]["tensors"], strict=True))
        assert states[key] == DAMAGED
        assert states[Key("embed.weight", "exp_avg")] == (WHOLE if path == torn else DAMAGED)


def test_a_file_that_was_cut_is_drawn_with_the_others(tmp_path: Path) -> None:
    shards = {f"model-0000{n}-of-00002.safetensors": f"layers.{n}.weight" for n in (1, 2)}
    first, second = shards
    for file, name in shards.items():
        weights = {f"{name}.{n}": np.arange(64, dtype=np.float32) for n in range(2)}
        save_file(weights, tmp_path / file)
    weight_map = {f"{name}.{n}": file for file, name in shards.items() for n in range(2)}
    index = {"metadata": {}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    zerotools.verify(tmp_path, write_manifest=True)
    os.truncate(tmp_path / second, (tmp_path / second).stat().st_size - 100)
    found = shown(tmp_path)
    assert found["verdict"] == "DAMAGED"
    assert any("but its header accounts for" in each for each in found["problems"])
    states = {
        row[0]: check for row, check in zip(found["files"], found["checks"]["files"], strict=True)
    }
    assert states[first][:2] == [WHOLE, ""]
    assert states[second][0] == DAMAGED
    assert DAMAGED not in states[second][2][1::2]
    assert found["checks"]["tensors"][:2] == [WHOLE, WHOLE]
    assert found["checks"]["tensors"][3] == DAMAGED
    told = command("verify", tmp_path)
    assert (told.returncode, told.stdout.splitlines()[-1]) == (1, "DAMAGED")
