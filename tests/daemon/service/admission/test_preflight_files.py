"""What a machine lacks for a job is said when the job is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.launching import job
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.attempts.job_environment import job_environment
from zerotoolsd.service.admission.preflight_files import (
    missing_requirements,
    too_large,
)


def problems(path: Path, **changes: Any) -> list[str]:
    """What a machine whose programs are in `path` lacks."""
    spec = job_from_dict(job(Path("/text"), **changes), source="job")
    return list(missing_requirements(spec, {"PATH": str(path)}))


def test_compiling_needs_a_compiler(tmp_path: Path) -> None:
    [sentence] = problems(tmp_path, train={"compile": True})
    assert sentence.startswith("train.compile = true: needs a compiler and PATH has none of c++, ")
    compiler = tmp_path / "g++"
    compiler.write_text("")
    compiler.chmod(0o755)
    assert problems(tmp_path, train={"compile": True}) == []


def test_the_compiler_that_the_job_names_is_the_one(tmp_path: Path) -> None:
    [sentence] = problems(tmp_path, train={"compile": True}, env={"CXX": "icpx"})
    assert "none of icpx" in sentence


def test_state_on_disk_needs_a_directory(tmp_path: Path) -> None:
    def offload(path: Path) -> dict[str, Any]:
        return {"offload": {"optimizer": "disk", "path": str(path)}}

    file = tmp_path / "file"
    file.write_text("")
    assert problems(tmp_path, **offload(tmp_path / "new" / "spill")) == []
    [sentence] = problems(tmp_path, **offload(file))
    assert sentence.startswith(f"offload.path = {file}: is not a directory")


def too_much(*words: str, **env: str) -> list[str]:
    """What no process can begin with."""
    script = {"command": ["x", *words], "directory": "/"}
    tree = {"engine": "script", "device": "cpu", "script": script, "env": env}
    spec = job_from_dict(tree, source="-")
    return list(too_large(spec, job_environment(spec)))


def test_many_words_are_too_much_together_though_none_is_too_long() -> None:
    assert too_much(*["word"] * 1000) == []
    (why,) = too_much(*["x" * 60_000] * 110)
    assert "take 6,6" in why
    assert "but the kernel accepts" in why


def test_a_path_is_added_to_pythonpath_at_the_start() -> None:
    assert too_much(PYTHONPATH="/x" * 1000) == []
    (why,) = too_much(PYTHONPATH="/x" * 65_000)
    assert why.startswith("PYTHONPATH has 130,011 bytes, and the daemon adds a path")
