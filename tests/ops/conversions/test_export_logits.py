"""An export answers what the model in training answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.execute import MemoryBudget


@pytest.mark.torch
@pytest.mark.parametrize("case", ["hf-trainer-z2-bf16-w2", "hf-trainer-z3-bf16-w2"])
def test_the_logits_of_the_live_engine(case: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    source = DEEPSPEED / case / "checkpoint" / "checkpoint-2"
    perform_conversion(
        prepare_export(source, tmp_path / "out", Options()), budget=MemoryBudget(), overwrite=False
    )
    live = load_file(DEEPSPEED / case / "logits.safetensors")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").eval()
    assert model.dtype == torch.bfloat16
    with torch.no_grad():
        logits = model(input_ids=live["input_ids"]).logits
    # The weights are equal bit for bit; matrix products may be summed in another order elsewhere.
    torch.testing.assert_close(logits, live["logits"], rtol=0, atol=2**-7)
