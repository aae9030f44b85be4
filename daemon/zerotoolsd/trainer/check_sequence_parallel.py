"""Checks that a model computes the same values for parts of a sequence as for the whole sequence.

All layers other than attention must work position by position. The check runs a small model with
the same layers, without a GPU. It detects models with state spaces or convolutions, and models that
compute positions themselves instead of reading the position ids. Each rank is a thread that
computes one part.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.trainer.data.collate import collate
from zerotoolsd.trainer.data.example_pools import Example
from zerotoolsd.trainer.data.packing import join_examples
from zerotoolsd.trainer.model.attention_choice import set_attention
from zerotoolsd.trainer.model.segment_attention import segments_of
from zerotoolsd.trainer.model.tiny_model import small_model
from zerotoolsd.trainer.sequence_parallel.all_to_all import Exchange
from zerotoolsd.trainer.sequence_parallel.sequence_attention import attend_over_ranks
from zerotoolsd.trainer.sequence_parallel.split_batch import (
    SequencePart,
    reading_own_part,
    set_sequence_part,
)

SEED = 0
LENGTHS = (5, 2, 6)
"""Lengths of the segments of the test sequence.

Its 13 positions are padded to a multiple of the number of ranks.
"""
NARROW = 4
"""Length of attention windows in the small model, so that a window ends inside a test sequence."""
TOLERANCE = 1e-3
"""Largest accepted difference of logits, relative to the largest logit.

If a model sorts tokens by expert, the rounding of one token depends on all other tokens.
"""
_FIRST_ID = 3
_WINDOWS = (
    *("sliding_window", "attention_window_size", "window_size", "attention_chunk_size"),
    *("local_attention", "floor_scale", "original_max_position_embeddings"),
)
"""Keys of a config with the length of an attention window, in positions."""
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")


def check_sequence_ranks(spec: JobSpec, config: Any) -> None:
    """Check that the job's sequence ranks (`zero.sequence_ranks`) can compute a model of `config`
    together.

    Raises:
        BadRequest: the number of ranks does not divide the attention heads.
        Unsupported: a layer other than attention mixes positions, or the model cannot be tested.
    """
    ranks = spec.zero.sequence_ranks
    if ranks == 1:
        return
    said = f"zero.sequence_ranks = {ranks}"
    if config.is_encoder_decoder:
        raise Unsupported(
            f"{said}: a {config.model_type} model has an encoder and a decoder, and only causal "
            "models support sequence ranks; remove zero.sequence_ranks"
        )
    _check_heads(config, ranks, spec.zero.tensor_ranks)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        why = _why_not(spec, config)
    if why is not None:
        raise Unsupported(
            f"{said}: a {config.model_type} model of transformers cannot compute its sequences in "
            f"parts: {why}; remove zero.sequence_ranks"
        )


def _check_heads(config: Any, ranks: int, tensor_ranks: int) -> None:
    heads = _heads(config)
    if heads is None or heads % tensor_ranks:  # the tensor ranks' own check reports these
        return
    own = heads // tensor_ranks
    if own % ranks:
        fitting = [str(count) for count in range(1, own + 1) if own % count == 0]
        which = f"the model's {own} attention heads"
        if tensor_ranks > 1:
            which = f"the {own} attention heads that each of {tensor_ranks} tensor ranks has"
        raise BadRequest(
            f"zero.sequence_ranks = {ranks}: must divide {which}, because all ranks get the same "
            f"number of heads; possible values: {', '.join(fitting)}"
        )


def _heads(config: Any) -> int | None:
    text = config.get_text_config()
    return next((v for name in _HEADS if type(v := getattr(text, name, None)) is int), None)


def _why_not(spec: JobSpec, config: Any) -> str | None:
    """Return the reason why sequence ranks cannot compute the model; None if they can.

    Compares the logits of a small model for split sequences with its logits for whole sequences. A
    comparison that cannot be made is also a reason.
    """
    try:
        small = small_model(_with_narrow_windows(config))
    except Exception as error:  # whatever a config class raises over values it was not made for
        return f"a small model for the test cannot be made ({_first_line(error)})"
    if small is None:
        return "no small model for the test can be made"
    set_attention(spec, small.eval())
    heads = _heads(small.config)
    tried = 2 if heads is None or heads % 2 == 0 else heads
    attend_over_ranks(copy.deepcopy(small), spec.zero.sequence_ranks)
    for batch in _batches(small, packing=spec.data.packing):
        try:
            wanted = _whole(small, batch)
            found = _in_stretches(small, batch, tried)
        except Exception as error:  # whatever a model raises over a mask of another kind
            return _first_line(error)
        off = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
        if not off <= TOLERANCE:
            return (
                f"a layer other than attention reads other positions (logits differ by "
                f"{off:.2g} of the largest logit)"
            )
    return None


def _with_narrow_windows(config: Any) -> Any:
    return type(config).from_dict(_narrowed(config.to_dict()))


def _narrowed(tree: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found[name] = _narrowed(value)
        else:
            is_wide = name in _WINDOWS and type(value) is int and value > NARROW
            found[name] = NARROW if is_wide else copy.deepcopy(value)
    return found


def _batches(model: Any, *, packing: bool) -> list[list[Example]]:
    most = model.config.get_text_config().vocab_size

    def example(length: int) -> Example:
        ids: list[int] = torch.randint(_FIRST_ID, most, (length,)).tolist()
        return Example(ids, ids)

    rows = [[example(size) for size in LENGTHS] for _ in range(2)]
    plain = [example(sum(LENGTHS)) for _ in range(2)]
    return [plain, [join_examples(row) for row in rows]] if packing else [plain]


def _whole(model: Any, batch: Sequence[Example]) -> torch.Tensor:
    arguments, _ = collate(model, batch, torch.device("cpu"))
    with segments_of(model, [each.lengths for each in batch]):
        logits: torch.Tensor = model(**arguments, use_cache=False).logits
    return logits


def _in_stretches(model: Any, batch: Sequence[Example], ranks: int) -> torch.Tensor:
    def one(exchange: Exchange) -> torch.Tensor:
        own = copy.deepcopy(model)
        attend_over_ranks(own, ranks)
        set_sequence_part(own, SequencePart(exchange))
        collated = collate(own, batch, torch.device("cpu"))
        with (
            torch.no_grad(),
            segments_of(own, [each.lengths for each in batch]),
            reading_own_part(own, *collated) as (arguments, _),
        ):
            logits: torch.Tensor = own(**arguments, use_cache=False).logits
        return logits

    parts = in_threads(ranks, one)
    return torch.cat(parts, dim=1)[:, : len(batch[0].inputs)]


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


LONGEST_WAIT = 60.0
"""Longest time that a thread waits for the others, in seconds."""
Found = TypeVar("Found")


def in_threads(ranks: int, work: Callable[[Exchange], Found]) -> list[Found]:
    """Run `work` in `ranks` threads, and return the results in the order of the ranks.

    The threads exchange tensors as ranks do, through the `Exchange` that `work` gets.

    Raises:
        Exception: the error of a thread. BrokenBarrierError means that the threads do not call
            `Exchange` equally often.
    """
    table = _Table(ranks)

    def one(index: int) -> Found:
        try:
            return work(_OverThreads(table, index, ranks))
        except BaseException:  # the others do not wait for it, and it is raised again
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        running = [pool.submit(one, index) for index in range(ranks)]
        errors = [found for each in running if (found := each.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):  # caused by another thread's error
            raise error
    return [each.result() for each in running]


@dataclass
class _Table:
    """The tensors that the threads exchange, and the barrier at which they wait for each other."""

    ranks: int
    blocks: list[torch.Tensor] = field(init=False)
    barrier: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = [torch.empty(0)] * self.ranks
        self.barrier = threading.Barrier(self.ranks, timeout=LONGEST_WAIT)


@dataclass(frozen=True)
class _OverThreads:
    """Implements `Exchange` between threads: thread `index` of `ranks`."""

    table: _Table
    index: int
    ranks: int

    def swap(self, blocks: torch.Tensor) -> torch.Tensor:
        return torch.stack([told[self.index] for told in self._everyone(blocks)])

    def total(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._everyone(values)).sum(0)

    def _everyone(self, own: torch.Tensor) -> list[torch.Tensor]:
        self.table.blocks[self.index] = own
        self.table.barrier.wait()
        told = list(self.table.blocks)
        self.table.barrier.wait()
        return told
