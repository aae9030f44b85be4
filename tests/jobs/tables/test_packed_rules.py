"""What goes with frozen weights in 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import job
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.jobfile.job_memory import memory_layout_of
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.tables.spec import JobSpec


def spec(tmp_path: Path, **changes: Any) -> JobSpec:
    lora = {"rank": 2, "frozen_precision": "nf4", **changes.pop("lora", {})}
    tree = {"model": {"path": str(tmp_path)}, "lora": lora, **changes}
    tree["data"] = {"tokenizer": "bytes"}
    return job_from_dict(job(tmp_path / "text", **tree), source="job")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"config": {"model_type": "llama"}}}, "base model must stay in a directory; se"),
        ({"offload": {"params": "cpu"}}, 'leave offload.params = "cpu" out'),
        ({"lora": {"rank": None}}, "lora.rank: is missing"),
        ({"lora": {"frozen_precision": "int4"}}, 'must be one of "train", "fp32", "nf4"'),
        (
            {"lora": {"frozen_precision": "train", "double_quant": False}},
            'lora.double_quant = false: is for lora.frozen_precision = "nf4"; set that',
        ),
        ({"engine": "deepspeed"}, "lora.frozen_precision"),
        ({"zero": {"tensor_ranks": 2}, "ranks": 2}, "cannot be shared by zero.tensor_ranks = 2;"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ZerotoolsError) as caught:
        spec(tmp_path, **changes)
    assert said in str(caught.value)


def test_the_layout_knows_what_is_packed(tmp_path: Path) -> None:
    layout = memory_layout_of(spec(tmp_path, train={"precision": "bf16"}))
    assert (layout.packs_frozen, layout.double_quant) == (True, True)
    assert (layout.frozen_dtype, layout.has_master(is_trained=False)) == ("bf16", False)
    single = memory_layout_of(spec(tmp_path, lora={"double_quant": False}))
    assert not single.double_quant
