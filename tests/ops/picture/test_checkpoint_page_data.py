"""What the page of a checkpoint shows of real checkpoints, and the strips of files."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from tests.golden_files import DEEPSPEED, JOB, TORCH
from zerotools import formats
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import BFLOAT16
from zerotools.ops.inspection.inspect import inspect
from zerotools.ops.picture.checkpoint_page_data import UNCLAIMED, picture_contents, strip


def contents_of(path: Path) -> dict[str, Any]:
    found = picture_contents(inspect(formats.read_any(path)))
    return json.loads(json.dumps(found, allow_nan=False))  # type: ignore[no-any-return]


def test_every_tensor_has_its_facts_and_its_files() -> None:
    found = contents_of(JOB)
    checkpoint = formats.read_any(JOB)
    assert found["verdict"] == "no problem found in its metadata"
    assert ["ZeRO stage", "3"] in found["facts"]
    assert ["step", "3"] in found["facts"]
    assert found["aliases"] == [["lm_head.weight", "model.embed_tokens.weight"]]
    names = [file[0] for file in found["files"]]
    assert names == sorted(checkpoint.files)
    for (key, tensor), shown in zip(checkpoint.tensors.items(), found["tensors"], strict=True):
        name, role, dtype, shape, elements, size, _, file_ranges, is_whole = shown
        assert Key(name, found["roles"][role]) == key
        assert (found["dtypes"][dtype], tuple(shape)) == (tensor.dtype.name, tensor.shape)
        assert (elements, size, is_whole) == (tensor.numel, tensor.nbytes, True)
        held = {names[n] for first, last in file_ranges for n in range(first, last + 1)}
        assert held == {chunk.file for chunk in tensor.chunks}


@pytest.mark.parametrize("path", [DEEPSPEED, TORCH], ids=lambda path: path.name)
def test_the_strip_of_a_file_names_every_tensor_that_fills_it(path: Path) -> None:
    case = sorted(path.glob("*/checkpoint"))[0]
    found = contents_of(case)
    seen = set[int]()
    for name, _, cells, _ in found["files"]:
        counts: Counter[int] = Counter()
        for number, tensor in zip(cells[::2], cells[1::2], strict=True):
            counts[tensor] += number
        assert sum(counts.values()) == 300, name
        seen |= counts.keys() - {UNCLAIMED}
    sizes = [tensor[5] for tensor in found["tensors"]]
    assert sizes.index(max(sizes)) in seen


def test_groups_have_their_hyperparameters_and_weights_their_group() -> None:
    case = sorted(DEEPSPEED.glob("*/checkpoint"))[0]
    found = contents_of(case)
    assert found["groups"]
    assert all("lr" in group["options"] for group in found["groups"])
    of_weights = [t[6] for t in found["tensors"] if found["roles"][t[1]] == "param"]
    assert set(of_weights) - {-1} == set(range(len(found["groups"])))


@pytest.mark.parametrize(
    ("case", "frozen"),
    [
        ("z2-bf16-w2", {"frozen.weight", "frozen.bias"}),
        ("z3-bf16-w3-adapter", {"base.weight", "base.bias", "embed.weight"}),
        ("z3-bf16-w2-exclude-frozen", set()),
        ("z0-fp32-w2", None),
    ],
)
def test_frozen_weights_are_those_that_the_checkpoint_records(
    case: str, frozen: set[str] | None
) -> None:
    found = contents_of(DEEPSPEED / case / "checkpoint")
    names = [tensor[0] for tensor in found["tensors"]]
    shown = found["frozen"]
    assert (None if shown is None else {names[index] for index in shown}) == frozen
    if frozen:
        truth = json.loads((DEEPSPEED / case / "truth.json").read_text())
        assert frozen == set(truth["frozen"])
        with_both = [index for index, name in enumerate(names) if name in frozen]
        assert shown == with_both, "of weights in two roles, both tensors"


def test_of_weights_alone_it_is_not_known_which_were_frozen(tmp_path: Path) -> None:
    save_file({"a.weight": np.ones((4, 2), np.float32)}, tmp_path / "model.safetensors")
    assert contents_of(tmp_path)["frozen"] is None


def test_a_file_that_is_lost_is_listed_and_its_tensors_are_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "step-00000003"
    shutil.copytree(JOB, path)
    (path / "dcp/__1_0.distcp").unlink()
    found = contents_of(path)
    assert found["verdict"] == "incomplete"
    (lost,) = [file for file in found["files"] if file[2] is None]
    assert lost[0].endswith("__1_0.distcp")
    assert lost[3]
    assert any(not tensor[8] for tensor in found["tensors"])
    assert found["problem_count"] == len(found["problems"]) > 0


def test_a_rank_file_of_another_save_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "step-00000003"
    shutil.copytree(JOB, path)
    assert contents_of(path)["apart"] == {}
    old = path / "dcp/__1_0.distcp"
    os.utime(old, (old.stat().st_mtime - 4 * 86400,) * 2)
    found = contents_of(path)
    ((index, when),) = found["apart"].items()
    name = found["files"][int(index)][0]
    assert name.endswith("__1_0.distcp")
    assert when == "written 4.0 days before the other files"
    assert any(note.startswith(f"{name}: {when}") for note in found["notes"])
    assert found["doubt"] == f"{name} was {when}"
    (path / "dcp/__0_0.distcp").unlink()
    assert contents_of(path)["doubt"] is None


@pytest.mark.parametrize("is_tied", [True, False])
def test_config_json_ties_an_output_layer_without_a_tensor(tmp_path: Path, is_tied: bool) -> None:
    embedding = {"model.embed_tokens.weight": np.ones((4, 2), np.float32)}
    save_file(embedding, tmp_path / "model.safetensors")
    config = {"model_type": "llama", "tie_word_embeddings": is_tied}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tied = [["the output layer (config.json)", *embedding]]
    assert contents_of(tmp_path)["aliases"] == (tied if is_tied else [])
    own = {**embedding, "lm_head.weight": np.zeros((4, 2), np.float32)}
    save_file(own, tmp_path / "model.safetensors")
    assert contents_of(tmp_path)["aliases"] == []


def test_a_thousand_ranks_make_a_small_page() -> None:
    ranks, count = 1000, 60
    tensors = {
        Key(f"layers.{n}.weight", role): Tensor(
            BFLOAT16,
            (ranks, 512),
            [
                Chunk(Box((rank, 0), (1, 512)), f"rank-{rank:04}.pt", (2 * n + other) * 1024)
                for rank in range(ranks)
            ],
        )
        for n in range(count)
        for other, role in enumerate(("param", "exp_avg"))
    }
    files = {f"rank-{rank:04}.pt": 2 * count * 1024 for rank in range(ranks)}
    checkpoint = Checkpoint(Path("/run"), tensors, Origin("safetensors", Path("/run")), files=files)
    found = picture_contents(inspect(checkpoint))
    assert len(json.dumps(found)) < 1 << 20
    assert all(tensor[7] == [[0, ranks - 1]] for tensor in found["tensors"])


@given(st.data())
def test_a_strip_has_all_cells_and_the_largest_tensor_of_each(data: st.DataObject) -> None:
    cells = data.draw(st.integers(1, 12))
    lengths = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=12))
    begin, tensor_bytes = 0, []
    for tensor, length in enumerate(lengths):
        if data.draw(st.booleans()):
            tensor_bytes.append((begin, begin + length, tensor))
        begin += length
    found = strip(tensor_bytes, begin, cells)
    assert sum(found[::2]) == cells
    shown = [
        tensor
        for number, tensor in zip(found[::2], found[1::2], strict=True)
        for _ in range(number)
    ]
    for cell, tensor in enumerate(shown):
        low, high = cell * begin / cells, (cell + 1) * begin / cells
        held = {t: min(e, high) - max(b, low) for b, e, t in tensor_bytes}
        most = max((size for size in held.values() if size > 1e-9), default=0.0)
        assert held.get(tensor, 0.0) == pytest.approx(most, abs=1e-6)
