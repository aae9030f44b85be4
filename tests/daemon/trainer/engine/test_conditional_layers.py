"""What some ranks compute of a model and others do not: trained as on one rank, or refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.finetuning import adverts, make_tokenizer, write_lines
from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.torch_releases import since_torch
from tests.matrices import FULL
from zerotools.core.errors import BadRequest, Unsupported

pytestmark = pytest.mark.torch
SWITCH = {
    "model_type": "switch_transformers",
    "vocab_size": 400,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 32,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1,
    "num_heads": 2,
    "num_experts": 6,
    "dropout_rate": 0.0,
    "router_jitter_noise": 0.0,
    "decoder_start_token_id": 0,
}
"""Few of its experts get tokens of a small batch, and others on each rank."""
SUMMATION, ROUNDING = 2e-6, 1e-3


def drawn(**config: Any) -> Any:
    from zerotools.jobs.jobfile_tables.model import ModelSpec
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config

    return make_meta_model(read_config(ModelSpec(config=config))).model


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Runs]:
    """The same steps on one rank and on two."""
    place = tmp_path_factory.mktemp("experts")
    data = {
        "text": [],
        "examples": [str(write_lines(place / "examples.jsonl", adverts(24)))],
        "prompt_column": "content",
        "response_column": "summary",
        "tokenizer": str(make_tokenizer(place / "tokenizer", seq2seq=True)),
    }
    jobs = {
        f"{stage} {precision}": {
            "model": {"config": SWITCH},
            "data": data,
            "zero": {"stage": stage},
            "train": {"steps": 3, "batch_size": 2, "precision": precision, "learning_rate": 3e-3},
        }
        for stage, precision in ((3, "fp32"), (1, "bf16"))[: None if FULL else 1]
    }
    return {
        ranks: run_all(place / str(ranks), place / "none", ranks, jobs, ends=False)
        for ranks in (1, 2)
    }


@since_torch("2.13", "experts in separate modules are refused for several ranks")
def test_experts_that_other_ranks_use_are_trained_as_on_one_rank(by_ranks: dict[int, Runs]) -> None:
    for name in by_ranks[1].report:
        near = SUMMATION if "fp32" in name else ROUNDING
        wanted = pytest.approx(by_ranks[1].losses(name), rel=near)
        assert by_ranks[2].losses(name) == wanted, name


def test_an_expert_without_tokens_is_not_updated() -> None:
    """As in a plain loop, where it has no gradient."""
    import torch

    from zerotoolsd.trainer.engine.conditional_layers import SeparateExperts

    model = torch.nn.Module()
    model.experts = torch.nn.ModuleDict({f"expert_{n}": torch.nn.Linear(2, 2) for n in range(3)})
    model.experts["expert_2"].weight.requires_grad_(False)
    model.others = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2))
    seen = SeparateExperts(model)
    group: Any = SimpleNamespace(
        total=lambda used: [mine + theirs for mine, theirs in zip(used, other, strict=True)]
    )
    other = [0.0, 0.0, 1.0]
    with torch.no_grad():
        model.experts["expert_1"](torch.ones(2))  # evaluated, not trained on
    model.experts["expert_0"](torch.ones(2))
    assert seen.untaken(group) == ["experts.expert_1.weight", "experts.expert_1.bias"]
    other = [0.0, 0.0, 0.0]
    assert len(seen.untaken(group)) == 5  # a frozen one is never updated


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"model_type": "m2m_100", "d_model": 32},
            "decoder_layerdrop = 0.05 and encoder_layerdrop = 0.05: each of the 2 ranks would",
        ),
        ({"model_type": "opt", "layerdrop": 0.1, "hidden_size": 48}, "has layerdrop = 0.1: each"),
    ],
)
def test_blocks_that_ranks_leave_out_at_random_are_refused(
    config: dict[str, Any], said: str
) -> None:
    from zerotoolsd.trainer.engine.conditional_layers import check_same_layers_on_ranks

    small = {"num_hidden_layers": 1, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 64}
    model = drawn(**small, **config)
    check_same_layers_on_ranks(model, 1, "torch")
    with pytest.raises(BadRequest, match=said):
        check_same_layers_on_ranks(model, 2, "torch")


def test_deepspeed_does_not_wait_for_experts_of_other_ranks() -> None:
    from zerotoolsd.trainer.engine.conditional_layers import check_same_layers_on_ranks

    model = drawn(**SWITCH)
    with pytest.raises(
        Unsupported, match='would wait for one another in DeepSpeed; set engine = "to'
    ):
        check_same_layers_on_ranks(model, 2, "deepspeed")


def test_a_torch_that_reduces_no_gradients_of_unused_experts_is_refused() -> None:
    from zerotoolsd.trainer.engine.conditional_layers import check_same_layers_on_ranks

    class Newer:
        set_reduce_scatter_unused_params = True

    model = drawn(**SWITCH)
    check_same_layers_on_ranks(model, 2, "torch", Newer)
    check_same_layers_on_ranks(model, 1, "torch", object)
    check_same_layers_on_ranks(drawn(**TINY_LLAMA), 2, "torch", object)
    with pytest.raises(Unsupported, match=r"only some ranks use; upgrade torch to 2\.13, or"):
        check_same_layers_on_ranks(model, 2, "torch", object)


def test_gradients_of_unlike_parameters_end_the_run() -> None:
    from zerotoolsd.trainer.engine.conditional_layers import check_parameters_marks, parameters_mark

    def totals(*names: list[str]) -> list[float]:
        marks = [float(parameters_mark(each)) for each in names]
        return [sum(marks), sum(each * each for each in marks)]

    check_parameters_marks(totals(["a", "b"], ["a", "b"], ["a", "b"]), 3, 0)
    check_parameters_marks(totals([], []), 2, 0)
    with pytest.raises(Unsupported, match="in step 5 the ranks have gradients of different param"):
        check_parameters_marks(totals(["a", "b"], ["a", "c"], ["a", "b"]), 3, 4)
