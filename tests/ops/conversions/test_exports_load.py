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
from tests.exported_models import KINDS, built, class_of, config_of, varied
from zerotools.core.errors import ZerotoolsError

for package in ("torch", "transformers", "peft"):
    pytest.importorskip(package)

VARIANTS = ("plain", "tied", "wrapped", "lora")
FORMS = ("zero1", "zero2", "zero3", "dcp", "ranks", "file")
FEW = ("llama:wrapped", "llama:lora", "gpt_neox:tied", "mixtral:wrapped", "falcon:tied")
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


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", in_this_process)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # by PEFT
def test_one_file_loads_or_is_refused(tmp_path: Path) -> None:
    import torch

    for number, case in enumerate(FEW):
        kind, variant = case.split(":")
        place = tmp_path / f"{kind}-{variant}"
        (place / "file").mkdir(parents=True)
        config = config_of(kind, is_tied=variant == "tied")
        (place / "config.json").write_text(json.dumps(config))
        torch.save(varied(kind, variant, number).state_dict(), place / "file" / "model.pt")
    found = {case: outcome(tmp_path, f"{case}:file") for case in FEW}
    assert [case for case, said in found.items() if said != "loads"] == ["llama:lora"]


@pytest.mark.full
@pytest.mark.torch
@pytest.mark.deepspeed
@pytest.mark.timeout(7200)
def test_the_matrix_loads_or_is_refused(tmp_path: Path) -> None:
    refused: dict[str, str] = {}
    for kind in KINDS:
        directory = tmp_path / kind
        directory.mkdir()
        cases = [case for case in MATRIX if case.startswith(f"{kind}:")]
        lacking = saved(directory, cases)
        found = {case: outcome(directory, case) for case in cases if case not in lacking}
        refused |= {case: why for case, why in found.items() if why != "loads"}
    assert {case: why for case, why in refused.items() if ":lora:" not in case} == {}
