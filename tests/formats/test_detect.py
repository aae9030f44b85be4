from __future__ import annotations

from pathlib import Path

import pytest

from zerotools import formats
from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.formats import detect


def _touch(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


JOB = ("dcp/.metadata", "dcp/__0_0.distcp", "job.json", "MANIFEST.json")


@pytest.mark.parametrize(
    ("names", "format_name"),
    [
        ([".metadata", "__0_0.distcp"], "dcp"),
        (["__0.metadata", "__1.metadata"], "dcp"),
        (list(JOB), "dcp"),
        (["dcp/.metadata"], "dcp"),
        (["model.safetensors", "config.json"], "safetensors"),
        (["model.safetensors.index.json"], "safetensors"),
    ],
)
def test_a_checkpoint_itself(tmp_path: Path, names: list[str], format_name: str) -> None:
    found = detect(_touch(tmp_path, *names))
    assert (found.format, found.path, found.notes) == (format_name, tmp_path, ())
    assert found.format in formats.FORMATS


def test_a_file_and_an_index(tmp_path: Path) -> None:
    _touch(tmp_path, "a.safetensors", "model.safetensors.index.json")
    assert detect(tmp_path / "a.safetensors").path == tmp_path / "a.safetensors"
    assert detect(tmp_path / "model.safetensors.index.json").path == tmp_path


def _steps(root: Path, *numbers: int) -> Path:
    for number in numbers:
        _touch(root, *(f"step-{number:08d}/{name}" for name in JOB))
    return root


def test_the_newest_step_is_taken_by_number_and_said(tmp_path: Path) -> None:
    _steps(tmp_path, 5, 40, 123456789)
    found = detect(tmp_path)
    assert found.path.name == "step-123456789"
    assert found.notes == ("took step-123456789, the newest of 3",)


def test_of_one_step_nothing_is_said(tmp_path: Path) -> None:
    assert detect(_steps(tmp_path, 5)).notes == ()


def test_an_unfinished_newest_step_is_passed_over_and_named(tmp_path: Path) -> None:
    _steps(tmp_path, 5, 6)
    (tmp_path / "step-00000006" / "MANIFEST.json").unlink()
    found = detect(tmp_path)
    assert found.path.name == "step-00000005"
    assert found.notes == ("took step-00000005: step-00000006 was not finished",)


@pytest.mark.parametrize(
    ("names", "below", "error", "said"),
    [
        (["x"], "nothing", BadRequest, "does not exist"),
        (["x"], "", BadFile, r"is no checkpoint: it has neither \.metadata"),
        (["__0_0.distcp"], "", BadFile, "was not finished"),
        (["dcp/__0_0.distcp"], "", BadFile, "was not finished"),
        (["dcp/.metadata", "job.json"], "", BadFile, r"no MANIFEST\.json.*not finished"),
        ([".tmp-3-abc/dcp/.metadata"], ".tmp-3-abc", BadFile, "was not finished"),
        ([".tmp-3-abc/dcp/.metadata"], "", BadFile, "only a checkpoint whose save was not"),
        (["step-00000003/dcp/__0_0.distcp"], "", BadFile, "step-00000003 was not finished"),
        (["zero_to_fp32.py", "latest"], "", BadFile, r"neither .* nor \*_model_states\.pt"),
        (["a.pt", "b.pth"], "", BadRequest, "name a.pt or b.pth"),
        (["mp_rank_00_model_states.pt"], "mp_rank_00_model_states.pt", BadRequest, "its directory"),
        (["pytorch_model_fsdp_0/__0_0.distcp"], "", BadFile, "was not finished"),
        (["step-1/.metadata", "checkpoint-2/.metadata"], "", BadRequest, "of 2 kinds"),
        (["a.txt"], "a.txt", BadFile, "no checkpoint"),
        ([".metadata"], ".metadata", BadRequest, "name its directory"),
        (["a/.metadata", "b/.metadata"], "", BadRequest, "name a or b in it"),
    ],
)
def test_what_is_no_checkpoint(
    tmp_path: Path, names: list[str], below: str, error: type[ZerotoolsError], said: str
) -> None:
    path = _touch(tmp_path, *names) / below
    with pytest.raises(error, match=said) as caught:
        detect(path)
    assert str(tmp_path) in str(caught.value)


def test_reading_adds_what_was_chosen(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "torch-2.13.0-fsdp2" / "two_ranks"
    for number in (1, 2):
        (tmp_path / f"step-{number}").symlink_to(golden)
    assert formats.read(tmp_path).origin.notes[0] == "took step-2, the newest of 2"
