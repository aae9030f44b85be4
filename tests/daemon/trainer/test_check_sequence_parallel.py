"""Which models ranks may compute a sequence of together, found out on small ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA, job
from tests.matrices import FULL
from zerotools.core.errors import BadRequest, Unsupported, ZerotoolsError
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.model import ModelSpec
from zerotools.jobs.jobfile_tables.spec import JobSpec

pytestmark = pytest.mark.torch
MAMBA = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 256}
BLOOM = {"model_type": "bloom", "hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 256}
T5 = {"model_type": "t5", "vocab_size": 256, "decoder_start_token_id": 0}
COUNTED = {
    **TINY_LLAMA,
    "model_type": "llama4_text",
    "head_dim": 8,
    "no_rope_layers": [1, 0],
    "attn_temperature_tuning": True,
}
OTHERWISE = "a layer other than attention reads other positions"


def together(count: int, model: dict[str, Any], tensor_ranks: int = 1, **changes: Any) -> JobSpec:
    zero = {"sequence_ranks": count, "tensor_ranks": tensor_ranks}
    tree = job(Path("/t"), ranks=count * tensor_ranks, zero=zero, model={"config": model})
    return job_from_dict({**tree, **changes}, source="job")


def check(spec: JobSpec) -> None:
    from zerotoolsd.trainer.check_sequence_parallel import check_sequence_ranks
    from zerotoolsd.trainer.model.meta_model import read_config

    check_sequence_ranks(spec, read_config(ModelSpec(config=spec.model.config)))


@pytest.mark.parametrize(
    ("count", "model", "kind", "said"),
    [
        (3, TINY_LLAMA, BadRequest, "must divide the model's 4 attention heads, because"),
        (3, TINY_LLAMA, BadRequest, "possible values: 1, 2, 4"),
        (2, T5, Unsupported, "a t5 model has an encoder and a decoder"),
        (2, MAMBA, Unsupported, OTHERWISE),
        (2, COUNTED, Unsupported, OTHERWISE),
        (2, BLOOM, Unsupported, "cannot replace the attention of BloomForCausalLM"),
    ],
)
def test_what_cannot_be_is_refused(
    count: int, model: dict[str, Any], kind: type[ZerotoolsError], said: str
) -> None:
    with pytest.raises(kind) as error:
        check(together(count, model))
    assert said in str(error.value)
    assert f"zero.sequence_ranks = {count}: " in str(error.value)


@pytest.mark.parametrize("attention", ["auto", "sdpa", "eager"] if FULL else ["auto"])
def test_a_model_of_attention_may(attention: str) -> None:
    examples = {
        "examples": ["/x"],
        "tokenizer": "/t",
        "packing": True,
        "sequence_length": 32,
    }
    spec = together(4, TINY_LLAMA, data=examples)
    check(replace(spec, model=replace(spec.model, attention=attention)))


def test_the_heads_of_a_tensor_rank_are_divided() -> None:
    check(together(2, TINY_LLAMA, tensor_ranks=2))
    with pytest.raises(BadRequest) as error:
        check(together(4, TINY_LLAMA, tensor_ranks=2))
    said = "= 4: must divide the 2 attention heads that each of 2 tensor ranks has, because"
    assert said in str(error.value)
    assert str(error.value).endswith("possible values: 1, 2")


def test_heads_that_are_few() -> None:
    few = {**TINY_LLAMA, "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 3}
    check(together(3, few))
