"""The bias of routers moves towards experts with few tokens, alike at every number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import job
from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.tensors import load
from zerotools.core.errors import Unsupported
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.tables.spec import JobSpec

pytestmark = pytest.mark.torch
RATE = 0.25
STEPS = 3


def built(name: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.architectures.configs import tiny_config

    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(tiny_config(name)).float()


def spec_of(**train: Any) -> JobSpec:
    return job_from_dict(job(Path("/text"), train=train), source="job")


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe"])
def test_it_moves_by_the_tokens_that_each_expert_got(name: str) -> None:
    import torch

    from zerotoolsd.trainer.data.sequences import Example
    from zerotoolsd.trainer.engine.objective import training_loss
    from zerotoolsd.trainer.engine.router_bias import BIAS, move_router_bias, moved_by, routers

    model = built(name)
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
    move_router_bias(spec_of(router_bias_rate=RATE), model)
    examples = [Example(row, row) for row in rows]
    moving = moved_by(model)
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
    from zerotoolsd.trainer.engine.router_bias import check_router_bias

    with pytest.raises(Unsupported, match=r"router_bias_rate = 0\.25: the model has no router"):
        check_router_bias(spec_of(router_bias_rate=RATE), built("mixtral"))
    assert "stays as it is" in str(check_router_bias(spec_of(), built("deepseek_v3")))
    assert check_router_bias(spec_of(router_bias_rate=RATE), built("deepseek_v3")) is None
    assert check_router_bias(spec_of(), built("llama")) is None


def biases(runs: Runs, name: str) -> dict[str, Any]:
    saved = load(runs.checkpoint(name, STEPS))
    return {key: value for key, value in saved.items() if "e_score_correction_bias" in key}


def test_it_is_the_same_at_every_number_of_ranks_and_saved(tmp_path: Path, text: Path) -> None:
    import torch

    model = {"config": {**built("deepseek_v3").config.to_dict(), "dtype": None}}
    train = {"steps": STEPS, "router_bias_rate": RATE}
    plain = {"model": model, "zero": {"stage": 0}, "train": train}
    cut = {"model": model, "zero": {"stage": 3}, "train": {**train, "micro_batch_size": 2}}
    again = {
        "model": model,
        "zero": {"stage": 2},
        "train": {**train, "activation_checkpointing": True},
    }
    one = run_all(tmp_path / "1", text, 1, {"plain": plain})
    two = run_all(tmp_path / "2", text, 2, {"cut": cut, "again": again})
    [wanted] = biases(one, "plain").values()
    assert wanted.abs().max() > 0
    for name in ("cut", "again"):
        [found] = biases(two, name).values()
        assert torch.equal(found, wanted), name
        assert two.losses(name) == pytest.approx(one.losses("plain"), rel=1e-5)


@pytest.mark.deepspeed
def test_deepspeed_moves_it_too(tmp_path: Path, text: Path) -> None:
    import torch
    from safetensors.torch import load_file

    train = {"steps": STEPS, "router_bias_rate": RATE}
    model = {"config": {**built("deepseek_v3").config.to_dict(), "dtype": None}}
    parameters = {"lr": 1e-2, "betas": [0.9, 0.95], "weight_decay": 0.1, "torch_adam": True}
    config = {
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": parameters},
        "gradient_clipping": 1.0,
    }
    tree = {"model": model, "zero": {"stage": 3}, "train": train}
    ours = run_all(tmp_path / "1", text, 2, {"torch": tree})
    of_deepspeed = {**tree, "engine": "deepspeed", "deepspeed": {"config": config}}
    run_all(tmp_path / "2", text, 2, {"deepspeed": of_deepspeed})
    [(name, wanted)] = biases(ours, "torch").items()
    weights = load_file(tmp_path / "2" / "out" / "deepspeed" / "weights" / "model.safetensors")
    assert torch.equal(weights[name.removeprefix("model.")], wanted)
