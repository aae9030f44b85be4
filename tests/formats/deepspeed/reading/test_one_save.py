"""Which files are shown to be of one save, in real checkpoints."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED
from zerotools.formats import read
from zerotools.formats.deepspeed.reading.one_save import files_of_one_save

OF_ANY_SAVE = {
    "z2-bf16-w2": "",
    "z2-bf16-w2-sgd": "",
    "z1-bf16-w4-tiny-group": "",
    "z3-bf16-w2": "",
    "z3-bf16-w3-adapter": "",
    "z3-bf16-w2-lion": "*_optim_states.pt",
    "z3-fp32-w2-momentum": "*_optim_states.pt",
    "z3-bf16-w2-before-first-step": "*_optim_states.pt",
    "bf16-optimizer-w2": "",
    "pipeline-z1-fp32-w4": "",
    "pipeline-z0-bf16-w2": "",
    "experts-z1-fp32-w4-round-robin": "",
    "tensor-parallel-z1-bf16-w4": "",
}


def others(path: Path) -> set[str]:
    checkpoint = read(path)
    return set(checkpoint.files) - files_of_one_save(checkpoint)


@pytest.mark.parametrize("case", OF_ANY_SAVE)
def test_files_say_their_step_or_hold_weights_of_masters(case: str) -> None:
    path = DEEPSPEED / case / "checkpoint"
    (tag,) = (entry for entry in path.iterdir() if entry.is_dir())
    pattern = OF_ANY_SAVE[case]
    assert others(path) == ({file.name for file in tag.glob(pattern)} if pattern else set())


@pytest.mark.parametrize(
    ("case", "pattern"),
    [("z3-fp32-w2", "*_optim_states.pt"), ("z2-fp32-w2", ""), ("z3-bf16-w3-adapter", "*.pt")],
)
def test_files_that_were_written_to_an_open_file_may_be_any_ranks(
    tmp_path: Path, case: str, pattern: str
) -> None:
    """At stage 3, where no weights tell; model files have parts of frozen weights."""
    shutil.copytree(DEEPSPEED / case / "checkpoint", tmp_path / "checkpoint")
    files = sorted(tmp_path.rglob("*.pt"))
    for file in files:
        as_to_an_open_file(file)
    assert others(tmp_path / "checkpoint") == (
        {file.name for file in files if file.match(pattern)} if pattern else set()
    )


def as_to_an_open_file(file: Path) -> None:
    """As torch.save writes it that gets no name: in the folder `archive`."""
    with zipfile.ZipFile(file) as old:
        records = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as new:
        for name, data in records.items():
            new.writestr(f"archive/{name.partition('/')[2]}", data)
