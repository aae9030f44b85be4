from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_files import GOLDEN, every_checkpoint
from zerotools import formats
from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.formats import UnfinishedCheckpoint, detect
from zerotools.formats.detect import allow_unfinished_name
from zerotools.io.output.part_ledger import PartLedger


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
        (["pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata", "scheduler.bin"], "dcp"),
        (["latest", "global_step3/mp_rank_00_model_states.pt"], "deepspeed"),
        (["latest", "checkpoint/mp_rank_00_model_states.pt"], "deepspeed"),
        (["pytorch_model.bin", "training_args.bin"], "torchfile"),
        (["pytorch_model-00001-of-00002.bin"], "torchfile"),
        (["pytorch_model_fsdp.bin", "optimizer.bin"], "torchfile"),
        (["pytorch_model_fsdp_0_rank0.bin", "optimizer_0_rank0.bin"], "torchfile"),
        (["model_world_size_1_rank_0.pt", "extra_state_world_size_1_rank_0.pt"], "torchfile"),
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


@pytest.mark.parametrize(
    ("names", "taken", "notes"),
    [
        (["checkpoint-9/.metadata", "checkpoint-10/.metadata"], "checkpoint-10", "newest of 2"),
        (["checkpoint/step-9/.metadata", "checkpoint/step-10/.metadata"], "step-10", "newest of 2"),
        (["checkpoints/checkpoint_0/pytorch_model_fsdp_0/.metadata"], "checkpoint_0", ""),
        (["checkpoint-5/model.safetensors", "checkpoint-5/trainer_state.json"], "checkpoint-5", ""),
        (
            ["checkpoint-5/latest", "checkpoint-5/global_step5/mp_rank_00_model_states.pt"],
            "checkpoint-5",
            "",
        ),
        (
            ["global_step_7/actor/model_world_size_1_rank_0.pt", "global_step_7/data.pt"],
            "actor",
            "",
        ),
        (["actor/model_rank0.pt", "critic/model_rank0.pt"], "actor", "holds critic too"),
        (
            ["checkpoint-5/pytorch_model_fsdp_0/__0_0.distcp", "checkpoint-4/.metadata"],
            "checkpoint-4",
            "checkpoint-5 was not finished",
        ),
    ],
)
def test_a_run_of_another_trainer(tmp_path: Path, names: list[str], taken: str, notes: str) -> None:
    found = detect(_touch(tmp_path, *names))
    assert found.path.name == taken
    assert notes in " ".join(found.notes)
    assert bool(notes) == bool(found.notes)


@pytest.mark.parametrize(
    ("names", "format_name", "said"),
    [
        (
            ["global_step3/mp_rank_00_model_states.pt", "pytorch_model.bin"],
            "deepspeed",
            "took DeepSpeed ZeRO in {}, not torch files next to it",
        ),
        (
            [".metadata", "model.safetensors"],
            "dcp",
            "took torch DCP in {}, not safetensors next to it",
        ),
        (
            ["model.safetensors", "checkpoint-5/model.safetensors", "checkpoint-6/empty"],
            "safetensors",
            "took the weights in {} itself; to read the checkpoint in checkpoint-5, pass its path",
        ),
    ],
)
def test_of_several_formats_it_says_which_it_took(
    tmp_path: Path, names: list[str], format_name: str, said: str
) -> None:
    found = detect(_touch(tmp_path, *names))
    assert (found.format, found.path) == (format_name, tmp_path)
    assert found.notes == (said.format(tmp_path),)


def _steps(root: Path, *numbers: int) -> Path:
    for number in numbers:
        _touch(root, *(f"step-{number:08d}/{name}" for name in JOB))
    return root


def test_the_newest_step_is_taken_by_number_and_said(tmp_path: Path) -> None:
    _steps(tmp_path, 5, 40, 123456789)
    found = detect(tmp_path)
    assert found.path.name == "step-123456789"
    assert found.notes == ("took step-123456789, the newest of 3 checkpoints",)


def test_of_one_step_nothing_is_said(tmp_path: Path) -> None:
    assert detect(_steps(tmp_path, 5)).notes == ()


def test_an_unfinished_newest_step_is_passed_over_and_named(tmp_path: Path) -> None:
    _steps(tmp_path, 5, 6)
    (tmp_path / "step-00000006" / "MANIFEST.json").unlink()
    found = detect(tmp_path)
    assert found.path.name == "step-00000005"
    assert found.notes == (
        "took step-00000005, because the save of step-00000006 was not finished",
    )


@pytest.mark.parametrize(
    ("names", "below", "error", "said"),
    [
        (["x"], "nothing", BadRequest, "does not exist"),
        (["x"], "", BadFile, r"is not a checkpoint: it has no \.metadata"),
        (["__0_0.distcp"], "", BadFile, "was not finished"),
        (["dcp/__0_0.distcp"], "", BadFile, "was not finished"),
        (["dcp/.metadata", "job.json"], "", BadFile, r"no MANIFEST\.json.*not finished"),
        ([".tmp-3-abc/dcp/.metadata"], ".tmp-3-abc", BadFile, "is an unfinished checkpoint"),
        ([".tmp-3-abc/dcp/.metadata"], "", BadFile, "only an unfinished checkpoint"),
        (["step-00000003/dcp/__0_0.distcp"], "", BadFile, "step-00000003 was not finished"),
        (["zero_to_fp32.py", "latest"], "", BadFile, r"has no .*, \*_model_states\.pt"),
        (["a.pt", "b.pth"], "", BadRequest, r"name \S+/a\.pt or \S+/b\.pth"),
        (["mp_rank_00_model_states.pt"], "mp_rank_00_model_states.pt", BadRequest, "its directory"),
        (["pytorch_model_fsdp_0/__0_0.distcp"], "", BadFile, "was not finished"),
        (["step-1/.metadata", "checkpoint-2/.metadata"], "", BadRequest, "of 2 kinds"),
        (["a.txt"], "a.txt", BadFile, "is not a checkpoint"),
        ([".metadata"], ".metadata", BadRequest, "pass its directory"),
        (["a/.metadata", "b/.metadata"], "", BadRequest, "pass the path of a or b in it"),
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
    assert formats.read(tmp_path).origin.notes[0] == "took step-2, the newest of 2 checkpoints"


@pytest.mark.parametrize(
    "path", every_checkpoint(), ids=lambda path: path.relative_to(GOLDEN).as_posix()
)
def test_every_chunk_lies_in_a_listed_file(path: Path) -> None:
    checkpoint = formats.read(path)
    for key, tensor in checkpoint.tensors.items():
        for chunk in tensor.chunks:
            end = chunk.offset + chunk.extent(tensor.dtype)
            assert end <= checkpoint.files.get(chunk.file, -1), (key, chunk.file)


def test_the_hints_of_a_job_mean_what_they_name(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "torch-2.13.0-fsdp2" / "two_ranks"
    for number in (1, 2):
        (tmp_path / f"step-{number:08d}").symlink_to(golden)
    (tmp_path / "best").write_text("step-00000001\n")
    assert formats.read(tmp_path / "best").origin.path == tmp_path / "step-00000001"
    (tmp_path / "best").write_text("global_step10\n")  # DeepSpeed has such a file too
    with pytest.raises(BadFile, match="best is not a checkpoint"):
        formats.read(tmp_path / "best")


def test_no_script_of_another_project_is_kept() -> None:
    """DeepSpeed and transformers put some beside what they save. Ours make golden files."""
    ours = {folder.name for folder in GOLDEN.glob("*_runs")}
    found = [path.relative_to(GOLDEN).parts for path in GOLDEN.rglob("*.py")]
    assert [parts for parts in found if parts[0] not in {"__init__.py", *ours}] == []


def test_an_unfinished_name_counts_no_more_where_the_checkpoint_is_complete(
    tmp_path: Path,
) -> None:
    path = _touch(tmp_path / "run.partial", "model.safetensors")
    other = _touch(tmp_path / "other.partial", "model.safetensors")
    with allow_unfinished_name(path):
        assert detect(path).format == "safetensors"
        with pytest.raises(BadFile, match="an unfinished checkpoint"):
            detect(other)
    with pytest.raises(BadFile, match="an unfinished checkpoint"):
        detect(path)


def test_an_unfinished_output_says_how_it_is_completed(tmp_path: Path) -> None:
    path = _touch(tmp_path / "out.partial", "model.safetensors")
    ledger = PartLedger(path, {}, 3)
    ledger.journal(2).close()
    ledger.close()
    with pytest.raises(UnfinishedCheckpoint, match=r"no run has begun part 1, 3\).* --part I/3"):
        detect(path)


def test_torch_files_of_no_known_layout_are_named_whole(tmp_path: Path) -> None:
    _touch(tmp_path, "model.pt", "config.json")
    with pytest.raises(BadRequest, match=rf"torch files; name {tmp_path / 'model.pt'}$"):
        detect(tmp_path)
