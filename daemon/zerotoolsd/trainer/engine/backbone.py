"""The part of a language model before its head, watched while it runs and made to answer for it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

HIDDEN = "last_hidden_state"


class CannotCut(Exception):
    """Raised if a model cannot be run in two parts; its text is the reason."""


@dataclass
class Seen:
    """The recorded output of the base model `name`."""

    output: Any = None
    name: str = ""
    depth: int = 0

    @property
    def hidden(self) -> torch.Tensor:
        """The hidden states, `[batch, length, hidden]`."""
        value = self.output[0] if isinstance(self.output, tuple) else self.output.get(HIDDEN)
        if not isinstance(value, torch.Tensor) or value.dim() != 3:
            raise CannotCut("its base model answers without hidden states")
        return value

    def with_hidden(self, hidden: torch.Tensor) -> Any:
        """Return the same output with other hidden states."""
        if isinstance(self.output, tuple):
            return (hidden, *self.output[1:])
        other = copy.copy(self.output)
        other[HIDDEN] = hidden
        return other


class BaseModel:
    """The base model of a causal `model`: the module that its `forward` calls before the head.

    It is the outermost called module that reads the token embeddings. This is usually the whole
    base model; if `forward` bypasses that, it is the decoder in it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        embeddings = model.get_input_embeddings()
        name = next((name for name, module in model.named_modules() if module is embeddings), "")
        parts = name.split(".")[:-1]
        self._names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        self._called = ""

    def random_outside(self) -> str | None:
        """Return the name of an active dropout module outside of the base model, or None."""
        for name, module in self._model.named_modules():
            if isinstance(module, nn.Dropout) and module.p and not self._holds(name):
                return str(name)
        return None

    def weights_outside(self) -> list[nn.Parameter]:
        """Return the trained parameters outside of the base model: those of the head."""
        found: dict[nn.Parameter, None] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            if parameter.requires_grad and not self._holds(name):
                found[parameter] = None
        return list(found)

    def _holds(self, name: str) -> bool:
        return name.startswith(f"{self._called}.")

    @contextmanager
    def watched(self) -> Iterator[Seen]:
        """Let the base model return only the first position's hidden state, inside the context.

        This makes the head fast. Afterwards the yielded value has the base model's real output.

        Raises:
            CannotCut: it was not called, or returned something else.
        """
        seen = Seen()

        def answer(name: str, module: Any, args: Any, arguments: Any) -> Any:
            seen.depth += 1
            output = module(*args, **arguments)
            seen.depth -= 1
            if seen.depth:
                return output
            seen.output, seen.name = output, name
            return seen.with_hidden(seen.hidden[:, :1].detach())

        with self._replaced(answer):
            yield seen
        if seen.output is None:
            raise CannotCut(f"{type(self._model).__name__} has no base model apart from its head")
        self._called = seen.name

    @contextmanager
    def answering(self, seen: Seen, hidden: torch.Tensor) -> Iterator[None]:
        """Let the base model return its recorded output with `hidden` in it, inside the context."""
        output = seen.with_hidden(hidden)
        with self._replaced(lambda *_: output):
            yield

    @contextmanager
    def _replaced(self, answer: Callable[..., Any]) -> Iterator[None]:
        modules = {name: self._model.get_submodule(name) for name in self._names}
        places = [(self._place(name), name.rpartition(".")[2]) for name in self._names]
        for (parent, last), (name, module) in zip(places, modules.items(), strict=True):
            parent._modules[last] = _StandIn(name, module, answer)
        try:
            yield
        finally:
            for (parent, last), module in zip(places, modules.values(), strict=True):
                parent._modules[last] = module

    def _place(self, name: str) -> nn.Module:
        parent: nn.Module = self._model.get_submodule(name.rpartition(".")[0])
        return parent


class _StandIn:
    """Replaces a module: only a call returns something else."""

    def __init__(self, name: str, module: Any, answer: Callable[..., Any]) -> None:
        self._name, self._module, self._answer = name, module, answer

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        return self._answer(self._name, self._module, args, arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
