"""A model in which one packed example influences the next is refused."""

from __future__ import annotations

from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.data.test_packing import PARTS, small
from zerotoolsd.trainer.data.sequences import Example

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("leaks", [False, True])
def test_a_model_that_sees_the_example_before_is_refused(leaks: bool) -> None:
    import torch

    from zerotools.core.errors import Unsupported
    from zerotoolsd.trainer.data.packing import join
    from zerotoolsd.trainer.engine.objective import summed_loss
    from zerotoolsd.trainer.packing_check import check_packing

    mamba = {"model_type": "mamba", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 1}
    model = small(mamba if leaks else TINY_LLAMA, "eager")

    class Engine:
        def evaluate(self, examples: list[Example]) -> Any:
            return summed_loss(model, examples, torch.device("cpu"))

    class Pool:
        def example(self, number: int) -> Example:
            return join(PARTS)

    if not leaks:
        check_packing(Engine(), Pool(), model.config)  # type: ignore[arg-type]
        return
    with pytest.raises(Unsupported, match=r"data\.packing: in this model one packed"):
        check_packing(Engine(), Pool(), model.config)  # type: ignore[arg-type]
