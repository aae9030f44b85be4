"""Muon for matrices with rows that are split among ranks. It uses torch's update rule, and its
result is the same for any number of ranks.

Each rank has the momentum of its rows. The update of a matrix needs all its rows, because five
Newton-Schulz iterations, which multiply the momentum with itself, make the momentum orthogonal. So
each matrix has an owner, one of the ranks that share the matrix. The ranks are owners in turn. The
rows of the momentum are gathered on the owner, which does the iterations. Then the rows of the
result are scattered to the ranks. With n ranks, n matrices are gathered at a time, one on each
rank. Rows are sent in bf16, the dtype of the iterations. Casting the rows gives the same bits as
casting the matrix. On GPUs without bf16 (before compute capability 8.0), the iterations are in
fp32.

    3 ranks, W of 4 rows:      rank 0 has rows 0-1, rank 1 rows 2-3, rank 2 none
    it is the second matrix:   rank 1 gathers 2 + 2 rows, iterates, scatters 2 + 2 rows

If each rank has whole matrices (stage 0), each rank computes all of them.

Source of the rule: torch/optim/_muon.py, with its defaults (Nesterov, five iterations).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from zerotools.sensors.snapshot import BF16_CAPABILITY
from zerotoolsd.trainer.engine_torch.reduce_and_update import Reduction, local_tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
FLOOR = 1e-7


class Muon(torch.optim.Optimizer):  # type: ignore[misc] # torch's types are not followed
    """An optimizer that updates this rank's rows of fp32 matrices according to Muon's rule."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        reduction: Reduction,
        *,
        lr: float,
        momentum: float,
        scale: str,
    ) -> None:
        """Make the optimizer. `scale` is a value of the job key `train.muon_scale`."""
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0, "momentum": momentum})
        assert len(reduction.groups) < 2, "rows are cut in one dimension of the mesh"
        self._among = reduction.groups[0] if reduction.groups else None
        self._device = reduction.device
        self._scale, self._type = scale, computing_type(reduction.device)

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update the weights that have gradients; all ranks call it together."""
        at_once = 1 if self._among is None else dist.get_world_size(self._among)
        with torch.no_grad():
            for group in self.param_groups:
                weights = [weight for weight in group["params"] if weight.grad is not None]
                for first in range(0, len(weights), at_once):
                    self._update(weights[first : first + at_once], group)

    def _update(self, weights: Sequence[torch.Tensor], group: dict[str, Any]) -> None:
        rate, momentum = group["lr"], group["momentum"]
        directions = [self._direction(weight, momentum) for weight in weights]
        if self._among is None:
            updates = [orthogonalised(direction) for direction in directions]
        else:
            updates = self._by_owners(weights, directions)
        for weight, update in zip(weights, updates, strict=True):
            values = local_tensor(weight)
            values.mul_(1 - rate * group["weight_decay"])
            scaled = rate * rate_scale(self._scale, weight.shape[0], weight.shape[1])
            values.add_(update[: values.shape[0]].to(values.device), alpha=-scaled)

    def _direction(self, weight: torch.Tensor, momentum: float) -> torch.Tensor:
        """Update the momentum of `weight`.

        Return this rank's rows of the matrix that the iterations will make orthogonal, in the dtype
        and on the device of the iterations.
        """
        gradient, moment = (
            local_tensor(weight.grad),
            local_tensor(self.state[weight]["momentum_buffer"]),
        )
        moment.lerp_(gradient, 1 - momentum)
        return gradient.lerp(moment, momentum).to(self._device, self._type)

    def _by_owners(
        self, weights: Sequence[torch.Tensor], directions: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Compute the updates of `weights`, each on its owner.

        Return this rank's rows of each update. The n-th rank is the owner of the n-th weight. The
        rows are padded to the number of rows of the first rank.
        """
        ranks = dist.get_world_size(self._among)
        own = dist.get_rank(self._among)
        mine: torch.Tensor | None = None
        parts = [_padded(d, w.shape[0], ranks) for w, d in zip(weights, directions, strict=True)]
        for owner, (weight, part) in enumerate(zip(weights, parts, strict=True)):
            whole = part.new_empty(ranks * part.shape[0], part.shape[1])
            self._gather(part, whole if owner == own else None, owner)
            if owner == own:
                mine = whole
                rows = whole[: weight.shape[0]]
                rows.copy_(orthogonalised(rows))
        for owner, part in enumerate(parts):
            self._scatter(part, mine if owner == own else None, owner)
        return parts

    def _gather(self, part: torch.Tensor, whole: torch.Tensor | None, owner: int) -> None:
        pieces = None if whole is None else [_bytes(piece) for piece in whole.split(len(part))]
        where = dist.get_global_rank(self._among, owner)
        dist.gather(_bytes(part), pieces, dst=where, group=self._among)

    def _scatter(self, part: torch.Tensor, whole: torch.Tensor | None, owner: int) -> None:
        pieces = None if whole is None else [_bytes(piece) for piece in whole.split(len(part))]
        where = dist.get_global_rank(self._among, owner)
        dist.scatter(_bytes(part), pieces, src=where, group=self._among)


def computing_type(
    device: torch.device,
    capability: Callable[[torch.device], tuple[int, int]] = torch.cuda.get_device_capability,
) -> torch.dtype:
    """Return the dtype of the Newton-Schulz iterations on `device`: bf16, or fp32 on older GPUs."""
    if device.type == "cuda" and capability(device) < BF16_CAPABILITY:
        return torch.float32
    return torch.bfloat16


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """Return an approximation of U V^T, if `matrix` is U S V^T.

    The singular values of the result are between 0.7 and 1.2.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if is_tall else matrix
    found = found / found.norm().clamp(min=FLOOR)
    for _ in range(ITERATIONS):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if is_tall else found


def rate_scale(scale: str, rows: int, columns: int) -> float:
    """Return the factor by which the learning rate of a matrix with `rows` and `columns` is
    multiplied.

    `scale` is a value of the job key `train.muon_scale`.
    """
    if scale == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))


def _padded(rows: torch.Tensor, all_rows: int, ranks: int) -> torch.Tensor:
    part = rows.new_zeros(-(-all_rows // ranks), rows.shape[1])
    part[: rows.shape[0]] = rows
    return part


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # gloo moves no bf16 in some versions of torch.
    return tensor.view(torch.uint8)
