"""Engine `deepspeed` goes on from DeepSpeed's own files, with the losses of the loop that saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.test_foreign import TOLERANCE, continued, job_of, precision
from tests.golden.foreign_runs.setting import BETAS, CLIP, DECAY, EPS, LEARNING_RATE, write_tokens
from tests.matrices import FULL

pytestmark = [
    pytest.mark.torch,
    pytest.mark.deepspeed,
    pytest.mark.dear(20, "DeepSpeed in two ranks"),
]

CASES = (
    ["deepspeed-z1", "deepspeed-z2", "deepspeed-z2-bf16", "deepspeed-z3"]
    if FULL
    else [
        "deepspeed-z2-bf16",
        "deepspeed-z3",
    ]
)
"""One of each way in which DeepSpeed cuts its state."""


def of(case: str, tokens: Path) -> dict[str, Any]:
    stage = int(case[len("deepspeed-z")])
    parameters = {"lr": LEARNING_RATE, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}
    config = {
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": precision(case) == "bf16"},
        "optimizer": {"type": "AdamW", "params": {**parameters, "torch_adam": True}},
        "gradient_clipping": CLIP,
    }
    tree = job_of(case, tokens, zero={"stage": stage})
    keys = ("steps", "batch_size", "precision", "learning_rate")
    train = {name: value for name, value in tree["train"].items() if name in keys}
    return {**tree, "train": train, "engine": "deepspeed", "deepspeed": {"config": config}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    directory = tmp_path_factory.mktemp("foreign")
    write_tokens(directory / "tokens.bin")
    jobs = {case: of(case, directory / "tokens.bin") for case in CASES}
    return run_all(directory, directory / "tokens.bin", 2, jobs, ends=False, blocks=2)


@pytest.mark.parametrize("case", CASES)
def test_the_losses_are_those_of_deepspeeds_own_next_steps(runs: Runs, case: str) -> None:
    found = runs.losses(case)
    assert found == pytest.approx(continued(case)["losses"], rel=TOLERANCE[precision(case)])
