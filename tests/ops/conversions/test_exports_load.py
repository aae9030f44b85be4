"""An export that is written loads in transformers with every weight; else nothing is written.

`tests.golden.deepspeed_runs.exports_judging` judges 41 architectures in all forms.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.exported_models import config_of, varied

for package in ("torch", "transformers", "peft"):
    pytest.importorskip(package)

from tests.golden.deepspeed_runs.exports_judging import (  # noqa: E402  (skipped without torch)
    outcome,
    trials_in_this_process,
    weights_of,
)

FEW = ("llama:wrapped", "llama:lora", "gpt_neox:tied", "mixtral:wrapped", "falcon:tied")


@pytest.fixture(autouse=True)
def _one_process() -> Iterator[None]:
    with trials_in_this_process():
        yield


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
        model = varied(kind, variant, number)
        if variant == "lora":
            model.peft_config["default"].save_pretrained(place)
        torch.save(model.state_dict(), place / "file" / "model.pt")
    found = {case: outcome(tmp_path, f"{case}:file", partial(_truth, case)) for case in FEW}
    assert set(found.values()) == {"loads"}, found
    (tmp_path / "llama-lora" / "adapter_config.json").unlink()
    why = outcome(tmp_path, "llama:lora:file", partial(_truth, "llama:lora"))
    assert why.startswith("refused: ")
    assert "adapter_config.json" in why


def _truth(case: str) -> dict[str, object]:
    return weights_of(*case.split(":"))
