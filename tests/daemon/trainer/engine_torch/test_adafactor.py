"""Adafactor's numbers are those of torch's, of tensors of any number of dimensions."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
SHAPES = ((7,), (5, 3), (4, 6, 2), (1, 8))
RATES = (0.5, 0.1, 0.02, 0.02)
CLOSE = 2e-6


def test_steps_are_those_of_torch() -> None:
    import torch

    from zerotools.jobs.jobfile_tables.train import TrainSpec
    from zerotoolsd.trainer.allocate_tensors import make_memory
    from zerotoolsd.trainer.engine_torch.optimizer import make_optimizer
    from zerotoolsd.trainer.engine_torch.reduce_and_update import InPlaceUpdate

    numbers = torch.Generator().manual_seed(3)
    mine = {
        str(shape): torch.nn.Parameter(torch.randn(shape, generator=numbers)) for shape in SHAPES
    }
    peers = {name: torch.nn.Parameter(p.detach().clone()) for name, p in mine.items()}
    device = torch.device("cpu")
    train = TrainSpec(steps=9, batch_size=1, optimizer="adafactor", weight_decay=0.1)
    place = make_memory(device).device
    decayed = frozenset(name for name, p in mine.items() if p.dim() > 1)
    optimizer = make_optimizer(InPlaceUpdate(mine, device), train, place, decayed)
    groups = [
        {"params": [p for p in peers.values() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in peers.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    wanted = torch.optim.Adafactor(groups, lr=1.0)
    for rate in RATES:
        for name in mine:
            gradient = torch.randn(mine[name].shape, generator=numbers)
            mine[name].grad, peers[name].grad = gradient.clone(), gradient
        for group in wanted.param_groups:
            group["lr"] = rate
        wanted.step()
        optimizer.step(rate, norm=1.0, max_norm=0.0)
    for name in mine:
        torch.testing.assert_close(mine[name], peers[name], rtol=CLOSE, atol=CLOSE)
        for role, value in wanted.state[peers[name]].items():
            state = optimizer.state()[f"{name}.{role}"]
            torch.testing.assert_close(state, value, rtol=CLOSE, atol=0.0)
    record = optimizer.describe()
    assert (record.name, record.groups[0].params) == ("adafactor", tuple(mine)[1:])


def test_it_keeps_a_number_per_row_and_column() -> None:
    import torch

    from zerotoolsd.trainer.allocate_tensors import make_memory
    from zerotoolsd.trainer.engine_torch.adafactor import first_state

    place = make_memory(torch.device("cpu")).device
    state = first_state(torch.nn.Parameter(torch.zeros(64, 32)), place)
    assert place.ledger.live == {("device", "moments"): 4 * (64 + 32)}
    assert sorted(state) == ["col_var", "row_var", "step"]
