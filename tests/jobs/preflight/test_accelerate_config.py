"""Config files by which accelerate starts one process for all GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.jobs.preflight.accelerate_config import refusal, single


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
        ("MULTI_GPU", [], False),
        ("FSDP", [], False),
        ("[", [], False),  # accelerate says itself what is wrong with it
    ],
)
def test_one_process_is_foreseen(
    default: Path, kind: str, options: list[str], is_single: bool
) -> None:
    default.write_text(f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\n")
    assert single(options, "/work") == (str(default) if is_single else None)


def test_the_file_that_is_named_counts(default: Path, tmp_path: Path) -> None:
    assert single([], "/work") is None, "without a file, accelerate counts the GPUs"
    default.write_text("distributed_type: NO\n")
    named = tmp_path / "own.json"
    named.write_text('{"distributed_type": "MULTI_GPU"}')
    for options in (["--config_file", "own.json"], [f"--config_file={named}"]):
        assert single(options, str(tmp_path)) is None
    named.write_text('{"distributed_type": "NO"}')
    assert single(["--config-file", "own.json"], str(tmp_path)) == str(named)
    assert "one process for 2 GPUs" in refusal(str(named), 2)
