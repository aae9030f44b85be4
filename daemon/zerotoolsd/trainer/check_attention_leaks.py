"""Checks that in a model no token sees later tokens or the tokens of another packed example.

The check runs a small model with the same layers and other widths (`tiny_model`). It needs no GPU.
It computes the gradient of the output at one token with respect to the embedding of a token that
must be hidden from it. This gradient must be exactly 0. The weights are random, so that no gradient
is 0 by chance.

A discrete choice, such as the selection of tokens by an indexer, has no gradient. So the check also
replaces the hidden tokens; the output must not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

from zerotools.core.errors import BadRequest, Unsupported
from zerotoolsd.trainer.data.collate import collate
from zerotoolsd.trainer.data.example_pools import Example
from zerotoolsd.trainer.data.packing import join_examples
from zerotoolsd.trainer.model.tiny_model import small_model

LENGTH = 7
"""Number of tokens in each of the two test examples. Ids below `_FIRST_ID` may be special and are
not used."""
SEED = 0
TOLERANCE = 1e-3
"""Largest difference of logits that counts as no change, relative to the largest logit.

If a model sorts tokens by expert, the rounding of one token depends on all other tokens.
"""
_FIRST_ID = 3
_OF_IMAGES = "`token_type_ids` is required"
"""Part of the error of Gemma 3 in transformers before 5.10, if a batch does not say which tokens
are of an image."""


def check_leaks(config: Any, *, packing: bool) -> None:
    """Raise an error if a causal model lets tokens see later tokens, or lets packed examples see
    each other.

    Packed examples are only checked if `packing` is True.

    Raises:
        BadRequest: a token sees later tokens.
        Unsupported: packed examples influence each other, or it cannot be tested whether they do;
            or this version of transformers cannot train the model on text alone.
    """
    if config.is_encoder_decoder:
        return
    found = _leaks(config, packing=packing)
    if found is not None and found.ahead:
        raise BadRequest(
            f"a {config.model_type} model with this config is bidirectional: each token sees "
            "the tokens after it, which it must predict; set is_decoder = true in the model's "
            "config if it has that key, or train a causal model"
        )
    if packing and found is None:
        raise Unsupported(
            "data.packing: zerotools cannot test whether packed examples of this "
            f"{config.model_type} model influence each other; set data.packing = false"
        )
    if packing and found is not None and found.mixed:
        raise Unsupported(
            f"data.packing: in a {config.model_type} model of transformers one packed example "
            "influences the next (the gradient between them is not 0); set data.packing = false"
        )


class _Leaks(NamedTuple):
    """The leaks that were found in a model.

    `ahead` is True if tokens see later tokens. `mixed` is True if packed examples influence each
    other.
    """

    ahead: bool
    mixed: bool


def _leaks(config: Any, *, packing: bool) -> _Leaks | None:
    """Return the leaks of a small model that has the layers of `config`; None if no small model can
    be made or run.

    Packed examples are checked only if `packing` is True.

    Raises:
        Unsupported: this version of transformers cannot train the model on text alone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        try:
            model = small_model(config)
            return None if model is None else _Leaks(_reads_ahead(model), packing and _mixes(model))
        except Exception as error:  # whatever a model raises over widths it was not made for
            if _OF_IMAGES in str(error):
                raise Unsupported(
                    f"transformers {transformers.__version__} does not train a "
                    f"{config.model_type} model on text alone ({error}); upgrade transformers to "
                    "5.10"
                ) from error
            return None


def _reads_ahead(model: Any) -> bool:
    """Return whether the output at the first half of a sequence depends on its second half."""
    first, second, other = (_tokens(model) for _ in range(3))
    whole, changed = (Example([*first, *rest], [0] * 2 * LENGTH) for rest in (second, other))
    early, late = slice(0, LENGTH), slice(LENGTH, None)
    return _depends(model, whole, changed, seeing=early, on=late)


def _mixes(model: Any) -> bool:
    """Return whether the output at the second of two packed examples depends on the first one."""
    first, second, other = (Example(_tokens(model), [0] * LENGTH) for _ in range(3))
    whole, changed = (join_examples([before, second]) for before in (first, other))
    early, late = slice(0, LENGTH), slice(LENGTH, None)
    return _depends(model, whole, changed, seeing=late, on=early)


def _depends(model: Any, whole: Example, changed: Example, *, seeing: slice, on: slice) -> bool:
    """Return whether the output at the positions `seeing` depends on the tokens at the positions
    `on`.

    `changed` is the sequence `whole` with other tokens at the positions `on`.
    """
    with _embeddings(model) as embedded:
        said = _compute_logits(model, whole)[seeing]
        # Of the sine, because a sum of logits may have no gradient at all.
        [gradient] = torch.autograd.grad(said.sin().sum(), embedded, materialize_grads=True)
        if bool(gradient[0, on].ne(0).any()):
            return True
        with torch.no_grad():
            difference = (_compute_logits(model, changed)[seeing] - said).abs().max()
        return not bool(difference <= TOLERANCE * said.abs().max())


def _compute_logits(model: Any, example: Example) -> torch.Tensor:
    arguments, _ = collate(model, [example], torch.device("cpu"))
    torch.manual_seed(SEED)  # for its dropout
    logits: torch.Tensor = model(**arguments, use_cache=False).logits
    return logits[0].float()


@contextmanager
def _embeddings(model: Any) -> Iterator[list[torch.Tensor]]:
    """Return a context manager that records the token embeddings of `model`. It yields a list.

    After each forward pass, the list has one tensor: the embeddings of that pass, `[1, tokens,
    width]`, with `requires_grad` set.
    """
    found: list[torch.Tensor] = []

    def keep(module: nn.Module, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        found[:] = [output.detach().requires_grad_()]
        return found[0].clone()  # some models add to it in place

    handle = model.get_input_embeddings().register_forward_hook(keep)
    try:
        yield found
    finally:
        handle.remove()


def _tokens(model: Any) -> list[int]:
    most = model.config.get_text_config().vocab_size
    drawn = torch.randint(_FIRST_ID, most, (LENGTH,))
    ids: list[int] = drawn.tolist()
    return ids
