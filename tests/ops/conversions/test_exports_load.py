"""An export that is written loads in transformers with every weight; else nothing is written.

The wide matrix is of 41 architectures, each plain, tied, in a wrapper and with adapters, saved by
two ranks in six forms.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zerotools
from tests.exported_models import KINDS, built, class_of
from zerotools.core.errors import ZerotoolsError
from zerotools.ops.weights import loading_trial

pytestmark = [pytest.mark.torch, pytest.mark.deepspeed]
for package in ("torch", "deepspeed", "transformers", "peft"):
    pytest.importorskip(package)

VARIANTS = ("plain", "tied", "wrapped", "lora")
FORMS = ("zero1", "zero2", "zero3", "dcp", "ranks", "file")
FEW = [
    f"{kind}:{variant}:{form}"
    for kind, variant, form in (
        ("llama", "wrapped", "zero3"),
        ("llama", "lora", "zero2"),
        ("gpt_neox", "tied", "dcp"),
        ("mixtral", "wrapped", "ranks"),
        ("falcon", "tied", "file"),
    )
]
MATRIX = [f"{k}:{v}:{f}" for k in KINDS for v in VARIANTS for f in FORMS]


def saved(directory: Path, cases: list[str]) -> dict[str, str]:
    """Save the cases by two ranks; what could not be saved, and why."""
    from tests.deepspeed_runs.launch import launch

    launch("tests.deepspeed_runs.exported", cases, 2, directory)
    found: dict[str, str] = json.loads((directory / "lacking.json").read_text())
    return found


def outcome(directory: Path, case: str) -> str:
    """Export a case: "loads", or why it was refused.

    Fails where the export lacks a weight, or has one of another value.
    """
    kind, variant, form = case.split(":")
    source = directory / f"{kind}-{variant}" / form
    if form == "file":
        source /= "model.pt"
    out = directory / "out" / case.replace(":", "-")
    try:
        zerotools.consolidate(source, out, dtype="fp32", config_dir=source.parents[form == "file"])
    except ZerotoolsError as error:
        assert not out.exists()
        return f"refused: {error}"
    cls: Any = class_of(kind)
    model, info = cls.from_pretrained(out, output_loading_info=True)
    assert not any(info.values()), (case, info)
    if variant != "lora":
        import torch

        truth = built(kind, is_tied=variant == "tied").state_dict()
        for name, value in model.state_dict().items():
            assert torch.equal(value, truth[name]), (case, name)
    return "loads"


def in_this_process(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """The program of a trial, without the imports of a new process."""
    out, before = io.StringIO(), (sys.stdin, sys.stdout, sys.argv)
    sys.stdin, sys.stdout, sys.argv = io.StringIO(options["input"]), out, ["-c"]
    try:
        exec(command[3], {})
    except SystemExit:
        pass
    finally:
        sys.stdin, sys.stdout, sys.argv = before
    return subprocess.CompletedProcess(command, 0, out.getvalue(), "")


@pytest.mark.parametrize(
    "cases", [FEW, pytest.param(MATRIX, marks=pytest.mark.full)], ids=["few", "matrix"]
)
@pytest.mark.timeout(7200)
def test_an_export_loads_or_is_refused(
    cases: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = saved(tmp_path, cases)
    assert not set(lacking) & set(FEW), lacking
    monkeypatch.setattr(loading_trial.subprocess, "run", in_this_process)
    found = {case: outcome(tmp_path, case) for case in cases if case not in lacking}
    refused = {case: why for case, why in found.items() if why != "loads"}
    assert {case for case in refused if ":lora:" not in case} == set()
