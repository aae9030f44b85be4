"""A job that cannot go on from a checkpoint is told so, and what to type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.jobfile.test_parse import parsed
from tests.jobs.jobfile_tables.test_complete_deepspeed_config import job
from tests.runs.records import a_record
from zerotools.core.dtypes import BFLOAT16, DType, dtype_named
from zerotools.jobs.preflight.checkpoint_check import not_resumable, quantised_refusal
from zerotools.runs.base_model_record import BaseFile, BaseRecord
from zerotools.runs.training_record import LoraRecord, OptimizerRecord

PATH = Path("/runs/a b/step-00000002")
RECORD = a_record(stage=2, engine="deepspeed")


GPTQ = {"quantization_config": {"quant_method": "gptq"}}
WHERE = Path("m/model.safetensors")


def why(wanted: int = 2, *, device: str = "cpu", ranks: int = 2, **changes: Any) -> list[str]:
    zero = {"stage": wanted, "offload_optimizer": {"device": device, "nvme_path": "/n"}}
    spec = job({"zero_optimization": zero}, ranks=ranks)
    return list(not_resumable(spec, replace(RECORD, **changes), PATH))


def test_the_same_layout_goes_on() -> None:
    assert why() == []
    assert why(0, ranks=3, stage=0) == []  # nothing is cut


def why_of(**changes: Any) -> str:
    [sentence] = why(**changes)
    return sentence


def test_other_ranks_are_told_the_command() -> None:
    assert why_of(ranks=3).endswith(
        "run zerotools reshard '/runs/a b/step-00000002' '/runs/a b/step-00000002-3-ranks' "
        '--world-size 3, and set resume_from = "/runs/a b/step-00000002-3-ranks"'
    )


def test_another_stage_is_told_it_too() -> None:
    [sentence] = list(not_resumable(job({"zero_optimization": {"stage": 3}}), RECORD, PATH))
    assert "--world-size 2 --stage 3, and" in sentence
    [sentence] = list(not_resumable(job({}), RECORD, PATH))
    assert "train at stage 2" in sentence


def test_another_engine_and_another_optimizer_are_refused() -> None:
    assert 'was written by engine "torch"' in why_of(engine="torch")
    assert 'was trained with "lion"; use "lion"' in why_of(optimizer=OptimizerRecord("lion", ()))


def test_nothing_goes_on_from_nvme() -> None:
    [sentence] = why(3, device="nvme", stage=3)
    assert "DeepSpeed does not load optimizer state that it offloaded to NVMe" in sentence
    assert 'start a new run from the weights with model.path = "/runs/a b/step-' in why_of(
        weights_only=True
    )


def test_adapters_go_on_as_strong_as_they_were() -> None:
    record = replace(RECORD, engine="torch", lora=LoraRecord(4, 3.0))
    same, weaker = (parsed(lora={"rank": 4, "alpha": alpha}) for alpha in (12.0, 8.0))
    assert list(not_resumable(same, record, PATH)) == []
    assert list(not_resumable(weaker, record, PATH)) == [
        f"lora.alpha = 8: the adapters of resume_from = {PATH} were trained with 12; use that value"
    ]


def test_adapters_go_on_beside_weights_of_the_same_kind() -> None:
    base = BaseRecord("/model", "nf4", {"model.safetensors": BaseFile(1, "0")})
    alone = a_record(lora=LoraRecord(2, 2.0, (), base))
    whole = a_record(lora=LoraRecord(2, 2.0))
    for saved, wanted, kept in ((alone, "train", "nf4"), (whole, "nf4", "train")):
        lora = {"rank": 2, "frozen_precision": wanted}
        spec = parsed(
            model={"path": "/model"}, lora=lora, data={"text": ["/a"], "tokenizer": "bytes"}
        )
        [sentence] = not_resumable(spec, saved, PATH)
        assert f'lora.frozen_precision = "{wanted}": the adapters of' in sentence
        assert f'with frozen weights of "{kept}"; use that' in sentence
    packed = parsed(
        model={"path": "/model"},
        lora={"rank": 2, "frozen_precision": "nf4"},
        data={"text": ["/a"], "tokenizer": "bytes"},
    )
    assert not list(not_resumable(packed, alone, PATH))
    single = a_record(lora=LoraRecord(2, 2.0, (), replace(base, double_quant=False)))
    [sentence] = not_resumable(packed, single, PATH)
    assert "lora.double_quant = true: the adapters of" in sentence
    assert (
        "were trained with false, and the frozen weights would differ; use that value"
    ) in sentence
    [sentence] = not_resumable(packed, a_record(), PATH)
    assert "was trained without adapters" in sentence


@pytest.mark.parametrize(
    ("name", "dtype", "config", "is_refused"),
    [
        ("a.weight", BFLOAT16, GPTQ, False),
        ("a.weight", dtype_named("uint8"), {}, True),
        ("a.scale", dtype_named("float8_e4m3fn"), {}, True),
        ("position_ids", dtype_named("int64"), {"quantization_config": None}, False),
        ("a.qweight", dtype_named("int32"), GPTQ, True),
        ("a.qweight", dtype_named("int32"), {"quantization_config": "?"}, False),
    ],
)
def test_what_is_refused(name: str, dtype: DType, config: dict[str, Any], is_refused: bool) -> None:
    sentence = quantised_refusal([(WHERE, "norm.weight", BFLOAT16), (WHERE, name, dtype)], config)
    assert (sentence is not None) == is_refused
    if sentence is not None:
        assert sentence.startswith(f"model.path: {WHERE}: {name} is {dtype}: quantised weights")
        assert ("(method gptq in its config.json)" in sentence) == (config == GPTQ)
