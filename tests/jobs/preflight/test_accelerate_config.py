"""Config files with which accelerate does not train on all GPUs of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.jobs.preflight.accelerate_config import accelerate_refusal


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config file that accelerate reads where none is named."""
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "huggingface" / "accelerate" / "default_config.yaml"
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("kind", "options", "is_single"),
    [
        ("NO", [], True),
        ("'NO'", [], True),
        ("null", ["--mixed_precision", "bf16"], True),
        ("NO", ["--multi_gpu"], False),
        ("NO", ["--use-fsdp"], False),
        ("NO", ["--use_deepspeed", "--zero_stage=2"], False),
        ("MULTI_CPU", [], True),
        ("MULTI_GPU", [], False),
        ("FSDP", [], False),
        ("[", [], False),  # accelerate says itself what is wrong with it
    ],
)
def test_one_process_is_foreseen(
    default: Path, kind: str, options: list[str], is_single: bool
) -> None:
    default.write_text(f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\n")
    why = accelerate_refusal(options, "/work", 2)
    assert (why is not None) is is_single
    if why is not None:
        assert why.startswith(f"{default}: distributed_type is ")
        assert "so accelerate starts only one process for 2 GPUs" in why
    assert accelerate_refusal(options, "/work", 1) is None


@pytest.mark.parametrize(
    ("kind", "options", "gpus", "is_refused"),
    [
        ("NO", [], 1, True),
        ("MULTI_CPU", [], 2, True),
        ("MULTI_GPU", [], 2, False),
        ("NO", ["--multi_gpu"], 2, False),
        ("NO", ["--cpu"], 1, False),  # the job says so itself
    ],
)
def test_a_config_of_cpus_is_refused(
    default: Path, kind: str, options: list[str], gpus: int, is_refused: bool
) -> None:
    default.write_text(f"distributed_type: {kind}\nuse_cpu: true\n")
    why = accelerate_refusal(options, "/work", gpus)
    said = f"{default}: use_cpu is true, so accelerate trains on the CPU; set use_cpu to false"
    assert (why is not None and why.startswith(said)) is is_refused


def test_the_file_that_is_named_counts(default: Path, tmp_path: Path) -> None:
    assert accelerate_refusal([], "/work", 2) is None, "without a file, accelerate counts the GPUs"
    default.write_text("distributed_type: NO\n")
    named = tmp_path / "own.json"
    named.write_text('{"distributed_type": "MULTI_GPU"}')
    for options in (["--config_file", "own.json"], [f"--config_file={named}"]):
        assert accelerate_refusal(options, str(tmp_path), 2) is None
    named.write_text('{"distributed_type": "NO"}')
    why = accelerate_refusal(["--config-file", "own.json"], str(tmp_path), 2)
    assert why is not None
    assert why.startswith(f"{named}: ")
