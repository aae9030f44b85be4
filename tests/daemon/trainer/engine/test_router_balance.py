"""The loss of routers is that of transformers, at every number of ranks and by both engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.launching import job
from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.tensors import load
from tests.matrices import FULL
from zerotools.core.errors import Unsupported
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec

pytestmark = pytest.mark.torch
MIXTRAL = {
    "model_type": "mixtral",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.5,
}
"""The coefficient is large, so that a loss without it differs."""


def spec_of(**train: Any) -> JobSpec:
    return job_from_dict(job(Path("/text"), train=train), source="job")


def built(name: str, **changes: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.architectures.configs import tiny_config

    config = tiny_config(name)
    # Jamba's kernels are for GPUs, and older releases of transformers do not look for one.
    changes = {"output_router_logits": True, "use_mamba_kernels": False, **changes}
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config).float()


@contextmanager
def skipped_where_refused() -> Iterator[None]:
    """Skip a test if jobs like its job are refused at submit with the installed transformers. CI
    has one with which no test may be skipped."""
    from importlib.metadata import version

    try:
        yield
    except Unsupported as refused:
        pytest.skip(f"transformers {version('transformers')}: {refused}")


@pytest.mark.parametrize(
    "name", ["gpt_oss", "granitemoe", "jamba", "jetmoe", "mixtral", "olmoe", "qwen3_moe"]
)
def test_value_and_gradient_are_those_of_transformers(name: str) -> None:
    """Sequences of two lengths: what fills up the shorter one does not count."""
    import torch

    from zerotoolsd.trainer.data.example_pools import Example
    from zerotoolsd.trainer.engine.router_balance import add_router_loss, check_router_loss
    from zerotoolsd.trainer.engine.training_loss import training_loss

    model = built(name, router_aux_loss_coef=0.5, aux_loss_coef=0.5)
    with skipped_where_refused():
        check_router_loss(spec_of(), model)
    rows = [torch.randint(3, 200, (length,)).tolist() for length in (12, 7)]
    examples = [Example(row[:-1], row[1:]) for row in rows]
    ids = torch.tensor([row + [0] * (12 - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (12 - len(row)) for row in rows])
    # transformers predicts within a row; the last token of each is only predicted here.
    inputs, seen = ids[:, :-1], mask[:, :-1].clone()
    seen[1, 6:] = 0
    labels = torch.where(mask[:, 1:].bool(), ids[:, 1:], -100)
    theirs = model(
        input_ids=inputs, attention_mask=seen, labels=labels, shift_labels=labels, use_cache=False
    ).loss
    wanted = torch.autograd.grad(theirs, list(model.parameters()), allow_unused=True)
    add_router_loss(spec_of(), model)
    ours = training_loss(
        model, examples, torch.device("cpu"), weight=1 / (11 + 6), router_weight=1.0
    )
    found = torch.autograd.grad(ours, list(model.parameters()), allow_unused=True)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    for mine, peer in zip(found, wanted, strict=True):
        if peer is not None:
            torch.testing.assert_close(mine, peer, rtol=1e-4, atol=1e-6)


def test_what_transformers_adds_no_loss_to_is_refused() -> None:
    import torch

    from zerotoolsd.trainer.engine.router_balance import balance_note, check_router_loss

    mixtral = built("mixtral")
    before = torch.get_rng_state()
    check_router_loss(spec_of(), mixtral)
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(Unsupported, match="a deepseek_v3 model has no such loss"):
        check_router_loss(spec_of(), built("deepseek_v3"))
    check_router_loss(spec_of(router_loss=False), built("deepseek_v3"))
    with pytest.raises(Unsupported, match="a llama model has no such loss"):
        check_router_loss(spec_of(), built("llama", router_aux_loss_coef=0.1, top_k=2))
    assert "to add 0.001 times this loss" in str(
        balance_note(built("qwen3_moe", output_router_logits=False).config)
    )
    assert balance_note(built("qwen3_moe").config) is None
    assert balance_note(built("llama", output_router_logits=False).config) is None


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[int, Runs]:
    """By number of ranks; with the jobs whose router has a bias, if these are not refused."""

    def changed(stage: int, *, added: bool = True, **train: Any) -> dict[str, Any]:
        return {
            "model": {"config": MIXTRAL},
            "zero": {"stage": stage},
            "train": {"router_loss": added, **train},
        }

    jobs = {
        1: {"plain": changed(0), "without": changed(0, added=False)},
        2: {
            "0": changed(0),
            "3": changed(3),
            "recomputed": changed(3, activation_checkpointing=True),
            "pieces": changed(2, micro_batch_size=3),
        },
    }
    biased = biased_jobs()
    root = tmp_path_factory.mktemp("routers")
    return {
        ranks: run_all(root / str(ranks), text, ranks, every, ends=biased[ranks].keys(), blocks=2)
        for ranks, every in ((ranks, named | biased[ranks]) for ranks, named in jobs.items())
    }


def biased_jobs() -> dict[int, dict[str, dict[str, Any]]]:
    """By number of ranks; none where jobs of their model are refused."""
    from zerotoolsd.trainer.engine.router_balance import check_router_bias

    try:
        check_router_bias(spec_with(router_bias_rate=RATE), built_for_bias("deepseek_v3"))
    except Unsupported:
        return {1: {}, 2: {}}
    return {
        1: {"biased": biased(0)},
        2: {
            "cut": biased(3, micro_batch_size=2),
            "again": biased(2, activation_checkpointing=True),
        },
    }


def test_losses_are_the_same_at_every_number_of_ranks(runs: dict[int, Runs]) -> None:
    plain = runs[1].losses("plain")
    assert plain[0] > runs[1].losses("without")[0] + 0.5
    for name in ("0", "3", "recomputed"):
        assert runs[2].losses(name) == pytest.approx(plain, rel=1e-5), name
    # Each piece is balanced by itself, as each forward pass of transformers is.
    assert runs[2].losses("pieces") == pytest.approx(plain, rel=1e-2)
    assert runs[2].losses("pieces") != pytest.approx(plain, rel=1e-5)


ADDED = (1, 3) if FULL else (3,)
ADAMW = {"lr": 1e-2, "betas": [0.9, 0.95], "weight_decay": 0.1, "torch_adam": True}


def by_deepspeed(stage: int, tree: dict[str, Any]) -> dict[str, Any]:
    """A job, trained by the other engine at `stage`."""
    config = {
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": ADAMW},
        "gradient_clipping": 1.0,
    }
    zero = {"stage": stage}
    return {**tree, "engine": "deepspeed", "zero": zero, "deepspeed": {"config": config}}


def biased(stage: int, **train: Any) -> dict[str, Any]:
    """A job of a model whose router has a bias, which moves."""
    model = {"config": {**built_for_bias("deepseek_v3").config.to_dict(), "dtype": None}}
    train = {"steps": STEPS, "router_bias_rate": RATE, **train}
    return {"model": model, "zero": {"stage": stage}, "train": train}


@pytest.fixture(scope="module")
def deepspeed(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    """Both losses and biases, on two ranks."""
    added = {"model": {"config": MIXTRAL}, "train": {"router_loss": True, "steps": 1}}
    jobs = {f"added-{stage}": by_deepspeed(stage, added) for stage in ADDED}
    jobs["moved"] = by_deepspeed(3, biased(3))
    directory = tmp_path_factory.mktemp("deepspeed") / "runs"
    return run_all(directory, text, 2, jobs, ends=("moved",), blocks=2)


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", ADDED)
def test_deepspeed_adds_it_too(runs: dict[int, Runs], deepspeed: Runs, stage: int) -> None:
    found = deepspeed.losses(f"added-{stage}")[0]
    assert found == pytest.approx(runs[1].losses("plain")[0], rel=1e-5)


RATE = 0.25
STEPS = 3


def built_for_bias(name: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.architectures.configs import tiny_config

    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(tiny_config(name)).float()


def spec_with(**train: Any) -> JobSpec:
    return job_from_dict(job(Path("/text"), train=train), source="job")


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe"])
def test_it_moves_by_the_tokens_that_each_expert_got(name: str) -> None:
    import torch

    from zerotoolsd.trainer.data.example_pools import Example
    from zerotoolsd.trainer.engine.router_balance import (
        BIAS,
        check_router_bias,
        move_router_bias,
        router_bias_in,
        routers,
    )
    from zerotoolsd.trainer.engine.training_loss import training_loss

    model = built_for_bias(name)
    with skipped_where_refused():
        check_router_bias(spec_with(router_bias_rate=RATE), model)
    rows = [torch.randint(3, 200, (length,)).tolist() for length in (9, 5)]
    [router] = routers(model)
    counts = torch.zeros(4)
    for row in rows:  # each alone, so that nothing fills it up
        seen: list[Any] = []
        handle = router.register_forward_hook(lambda *args, seen=seen: seen.append(args[2]))
        model(input_ids=torch.tensor([row]), use_cache=False)
        handle.remove()
        counts += seen[0][2].flatten().bincount(minlength=4)
    before = getattr(router, BIAS).clone()
    move_router_bias(spec_with(router_bias_rate=RATE), model)
    examples = [Example(row, row) for row in rows]
    moving = router_bias_in(model)
    assert moving is not None
    for skipped in (True, False):
        training_loss(model, examples, torch.device("cpu"), weight=1.0, router_weight=1.0)
        with torch.no_grad():  # an evaluation does not count
            model(input_ids=torch.tensor(rows[:1]), use_cache=False)
        moving.step(skipped=skipped)
        wanted = before if skipped else before + RATE * (counts.mean() - counts).sign()
        assert torch.equal(getattr(router, BIAS), wanted)
    assert not torch.equal(getattr(router, BIAS), before)


def test_a_model_without_one_is_refused_and_one_that_stays_is_named() -> None:
    from zerotoolsd.trainer.engine.router_balance import check_router_bias

    with pytest.raises(Unsupported, match=r"router_bias_rate = 0\.25: the model has no router"):
        check_router_bias(spec_with(router_bias_rate=RATE), built_for_bias("mixtral"))
    assert "is not updated, as in transformers" in str(
        check_router_bias(spec_with(), built_for_bias("deepseek_v3"))
    )
    assert check_router_bias(spec_with(), built_for_bias("llama")) is None
    with skipped_where_refused():
        moves = check_router_bias(spec_with(router_bias_rate=RATE), built_for_bias("deepseek_v3"))
    assert moves is None


def test_a_router_that_does_not_return_the_chosen_experts_is_refused() -> None:
    """As those of transformers 5.1 are."""
    import torch

    from zerotoolsd.trainer.engine.router_balance import check_router_bias

    class Router(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 4, bias=False)
            self.register_buffer("e_score_correction_bias", torch.zeros(4))

    with pytest.raises(Unsupported, match="do not return the experts that they choose; upgrade"):
        check_router_bias(spec_with(router_bias_rate=RATE), torch.nn.Sequential(Router()))


def biases(runs: Runs, name: str) -> dict[str, Any]:
    saved = load(runs.checkpoint(name, STEPS))
    return {key: value for key, value in saved.items() if "e_score_correction_bias" in key}


@pytest.fixture(scope="module")
def moved(runs: dict[int, Runs]) -> dict[int, Runs]:
    """By number of ranks."""
    from zerotoolsd.trainer.engine.router_balance import check_router_bias

    with skipped_where_refused():
        check_router_bias(spec_with(router_bias_rate=RATE), built_for_bias("deepseek_v3"))
    return runs


def test_it_is_the_same_at_every_number_of_ranks_and_saved(moved: dict[int, Runs]) -> None:
    import torch

    one, two = moved[1], moved[2]
    [wanted] = biases(one, "biased").values()
    assert wanted.abs().max() > 0
    for name in ("cut", "again"):
        [found] = biases(two, name).values()
        assert torch.equal(found, wanted), name
        assert two.losses(name) == pytest.approx(one.losses("biased"), rel=1e-5)


@pytest.mark.deepspeed
def test_deepspeed_moves_it_too(moved: dict[int, Runs], deepspeed: Runs) -> None:
    import torch
    from safetensors.torch import load_file

    [(name, wanted)] = biases(moved[1], "biased").items()
    weights = load_file(deepspeed.directory / "moved" / "weights" / "model.safetensors")
    assert torch.equal(weights[name.removeprefix("model.")], wanted)
