"""Training on tokens as Megatron-LM's script does it, and its own next steps after a save.

Every step has all windows, as in `tests/golden/foreign_runs`: the loss of the run's own
continuation is what another program must reach that goes on from its checkpoint.
"""

from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func

from .hub_cases import BEFORE, windows


def train_on_tokens(wrapped, optimizer, steps: int) -> list[float]:
    """Take steps; the losses before each, which only the last pipeline stage has."""
    config = wrapped.config
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = wrapped.no_sync
    run = get_forward_backward_func()
    mine = windows().chunk(parallel_state.get_data_parallel_world_size())
    batch = mine[parallel_state.get_data_parallel_rank()]
    losses = []
    for _ in range(steps):
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        found = run(
            forward_step_func=_forward,
            data_iterator=iter([batch]),
            model=[wrapped],
            num_microbatches=1,
            seq_length=batch.shape[1] - 1,
            micro_batch_size=len(batch),
            forward_only=False,
        )
        losses += [float(each["loss"]) for each in found]
        optimizer.step()
    return losses


def _forward(batches, model):
    batch = next(batches)
    tokens, labels = batch[:, :-1], batch[:, 1:]
    places = torch.arange(tokens.shape[1])[None].expand_as(tokens)
    later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    return model(tokens, places, later[None, None], labels=labels), partial(_loss)


def _loss(losses):
    """The mean over all tokens, and over all ranks for who reads it."""
    mean = losses.float().mean()
    whole = mean.detach().clone()
    group = parallel_state.get_data_parallel_group()
    torch.distributed.all_reduce(whole, group=group)
    return mean, {"loss": whole / group.size()}


def continued(wrapped, optimizer, steps: int) -> dict[str, object]:
    """What `continued.json` has: losses after the save, of the ranks that know them."""
    losses = train_on_tokens(wrapped, optimizer, steps)
    every = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, losses)
    return {"before": BEFORE, "losses": next(each for each in every if each)}
