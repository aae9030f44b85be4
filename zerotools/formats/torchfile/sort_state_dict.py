"""Sort the tensors of a saved tree into weights, the state of one torch optimizer, and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.core.checkpoint import Key, Opaque, TensorRef
from zerotools.core.errors import BadFile, Unsupported, ZerotoolsError
from zerotools.formats.torchfile.refuse_non_model import (
    is_partition,
    refuse_other,
    refuse_part_of_model,
    refuse_partition,
)
from zerotools.formats.torchfile.sharded_tensors import WHOLE, PartialTensor, partial_tensor_of
from zerotools.io.torchzip.pickle_values import StoredTensor, kind_text, walk_values
from zerotools.io.torchzip.tree_tensors import why_unread

WRAPPERS = ("model", "state_dict", "model_state_dict", "module")
STATE_ROLE = "state"
_DEEPEST = 32
_MAX_NAMED = 5
# Parts of a pickle can be shared, so the tree may be far larger than the file. In a tree without
# shared parts, each part is visited at most once per level.
_STEPS_PER_PART = 2 * _DEEPEST


@dataclass
class FileContents:
    """The sorted tensors of one file.

    `weights` and `rest` are keyed by dotted name. `moments`, the tensors of the optimizer, are
    keyed by (name or number of the parameter, role). `wrapper` is the key of the dict that contains
    the weights, or None if they are at the top of the tree. `unread_optimizers` are the keys of the
    optimizers if the file has several: their tensors are in `rest`.
    """

    weights: dict[str, PartialTensor] = field(default_factory=dict)
    moments: dict[tuple[str | int, str], PartialTensor] = field(default_factory=dict)
    rest: dict[str, PartialTensor] = field(default_factory=dict)
    groups: list[Any] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    wrapper: str | None = None
    unread_optimizers: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if every tensor is whole, not one rank's part of a larger tensor."""
        return all(pieces.kind == WHOLE for pieces in self.all())

    def all(self) -> Iterator[PartialTensor]:
        """Yield every tensor."""
        yield from self.weights.values()
        yield from self.moments.values()
        yield from self.rest.values()


def sort_tensors(tree: Any) -> FileContents:
    """Sort the tensors of a saved tree into weights, optimizer state and others.

    A nested dict is flattened to names with dots. If weights are below a key such as "model", only
    the tensors below this key are weights, and tensors next to the key are other state. A torch
    optimizer is recognised by its two keys, `state` and `param_groups`.

    Raises:
        BadFile: the value is not a tree of tensors, or the tree is damaged.
        Unsupported: the value is a pickled object, has placeholders instead of weights, has only
            one rank's part of a model, or has a kind of weights that zerotools does not read.
    """
    refuse_other(tree)
    partitions = {key for key, value in tree.items() if is_partition(value)}
    if is_partition({k: v for k, v in tree.items() if k not in partitions}):
        refuse_partition(tree)
    sorter = _TensorSorter(_STEPS_PER_PART * (1 + sum(1 for _ in walk_values(tree))))
    if is_optimizer(tree):
        sorter.optimizer(tree)
        sorter.refuse_unread()
        return sorter.contents
    optimizers = [key for key, value in tree.items() if _optimizer(value) is not None]
    if len(optimizers) != 1:
        unread = (str(key)[:200] for key, value in tree.items() if _optimizers(value))
        sorter.contents.unread_optimizers = tuple(unread)
    is_trained = bool(optimizers or partitions)
    wrapper = sorter.contents.wrapper = _wrapper(tree, sorter, trained=is_trained)
    for key, value in tree.items():
        if optimizers == [key]:
            sorter.optimizer(_optimizer(value) or {})
        elif key == wrapper:
            sorter.weights(value, ())
        elif wrapper is None and key not in (*optimizers, *partitions):
            sorter.weights(value, (key,))
        else:
            sorter.others(value, (key,))
    sorter.refuse_unread()
    if not sorter.contents.weights:
        refuse_partition(tree)
    refuse_part_of_model(tree, sorter.contents.weights)
    return sorter.contents


def is_optimizer(value: Any) -> bool:
    """Return whether a value is a torch optimizer's state_dict."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("state"), dict)
        and isinstance(value.get("param_groups"), list)
    )


def _optimizer(value: Any) -> dict[Any, Any] | None:
    """Return a torch optimizer's state dict: `value` itself or its only element (Lightning). Else
    None.
    """
    found = _optimizers(value)
    return found[0] if len(found) == 1 else None


def _optimizers(value: Any) -> list[Any]:
    """Return the state dicts of optimizers in `value`, which is one or consists only of them."""
    if is_optimizer(value):
        return [value]
    parts = list(value.values()) if isinstance(value, dict) else value
    return parts if isinstance(parts, list) and all(map(is_optimizer, parts)) else []


def without_optimizers(tree: Any) -> Any:
    """Return a saved tree without its optimizers and collections of optimizers. If it has no
    optimizers, return the same object.
    """
    if not isinstance(tree, dict):
        return tree
    left = {key: value for key, value in tree.items() if not _optimizers(value)}
    return tree if len(left) == len(tree) else left


def _wrapper(tree: Mapping[Any, Any], sorter: _TensorSorter, *, trained: bool) -> str | None:
    """Return the key of the dict that contains the weights of a saved tree, or None if the weights
    are at the top of the tree.

    `trained` is True if the tree has an optimizer. Without an optimizer, weights next to the key
    mean that the whole tree is one larger model, and None is returned. A loss, a counter and the
    state of a random number generator do not count as weights.
    """
    for name in WRAPPERS:
        if isinstance(tree.get(name), dict) and sorter.holds_tensors(tree[name]):
            return name if trained or not any(map(_is_weight, tree.values())) else None
    return None


def _is_weight(value: Any) -> bool:
    pieces = partial_tensor_of(value)
    return pieces is not None and pieces.dtype.is_float and bool(pieces.shape)


class _TensorSorter:
    """Sorts the tensors of a tree into `contents`. The number of steps is limited, so that a small
    malicious file cannot keep the sorter busy for hours.
    """

    def __init__(self, most_steps: int) -> None:
        self.contents = FileContents()
        self._steps_left = most_steps
        self._unread: list[tuple[str, str]] = []

    def weights(self, value: Any, path: tuple[Any, ...]) -> None:
        for at, leaf in self._leaves(value, path, self._holds_weights):
            pieces = self._pieces(at, leaf)
            if pieces is None:
                _put(self.contents.state, at, leaf)
            else:
                _add(self.contents.weights, dotted_name(at), pieces)

    def _pieces(self, at: tuple[Any, ...], leaf: Any) -> PartialTensor | None:
        """Return the value as a tensor; None if it is not a tensor. A tensor that zerotools does
        not read is recorded for `refuse_unread`.
        """
        try:
            pieces = partial_tensor_of(leaf)
        except ZerotoolsError as error:
            raise type(error)(f"{dotted_name(at)} is {error}") from None
        if pieces is None and (why := self._unread_because(leaf)) is not None:
            self._unread.append((dotted_name(at), why))
        return pieces

    def _unread_because(self, leaf: Any) -> str | None:
        why = why_unread(leaf)
        if why is None and isinstance(leaf, Opaque) and _is_object(leaf):
            inside = self.holds_tensors(leaf)
            return f"a pickled {kind_text(leaf):.200} with tensors in it" if inside else None
        return why

    def refuse_unread(self) -> None:
        """Raise an error if a weight would be left out.

        Raises:
            Unsupported: there are tensors of a kind that zerotools does not read; the message names
                the first few.
        """
        if not self._unread:
            return
        named = ", ".join(f"{name:.200} is {why}" for name, why in self._unread[:_MAX_NAMED])
        more = len(self._unread) - _MAX_NAMED
        raise Unsupported(f"{named}{f', and {more} more' if more > 0 else ''}")

    def others(self, value: Any, path: tuple[Any, ...]) -> None:
        for at, leaf in self._leaves(value, path, self.holds_tensors):
            pieces = partial_tensor_of(leaf)
            if pieces is None:
                _put(self.contents.state, at, leaf)
            else:
                _add(self.contents.rest, dotted_name(at), pieces)
                _put(self.contents.state, at, TensorRef(Key(dotted_name(at), STATE_ROLE)))

    def optimizer(self, value: Mapping[Any, Any]) -> None:
        self.contents.groups = value["param_groups"]
        self.contents.state["param_groups"] = value["param_groups"]
        for parameter, entry in value["state"].items():
            name = parameter if type(parameter) is int else str(parameter)
            for at, leaf in self._leaves(entry, (), self._holds_weights):
                pieces = self._pieces(("optimizer", name, *at), leaf)
                if pieces is None:
                    _put(self.contents.state, ("optimizer", name, *at), leaf)
                else:
                    _add(self.contents.moments, (name, dotted_name(at) or STATE_ROLE), pieces)

    def holds_tensors(self, value: Any) -> bool:
        for part in walk_values(value):
            self._step()
            if isinstance(part, StoredTensor):
                return True
        return False

    def _holds_weights(self, value: Any) -> bool:
        """Return whether a tree contains tensors, including tensors that zerotools does not
        read.
        """
        for part in walk_values(value):
            self._step()
            if isinstance(part, StoredTensor) or why_unread(part) is not None:
                return True
        return False

    def _leaves(
        self, value: Any, path: tuple[Any, ...], is_of_interest: Callable[[Any], bool]
    ) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield (path, value) of the leaves of a tree, in order. A container for which
        `is_of_interest` is False is one leaf.
        """
        self._step()
        is_table = isinstance(value, dict)
        if not (is_table or isinstance(value, list | tuple)) or not is_of_interest(value):
            yield path, value
            return
        if len(path) > _DEEPEST:
            raise BadFile(f"it nests tensors more than {_DEEPEST} levels deep")
        for key, part in value.items() if is_table else enumerate(value):
            yield from self._leaves(part, (*path, key), is_of_interest)

    def _step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise BadFile("its parts contain one another without end: it is not a checkpoint")


def _is_object(value: Opaque) -> bool:
    """Return whether a value is an object other than torch's random number generator.

    The state of the generator is a tensor but not a weight.
    """
    return (value.module, value.name) != ("torch._C", "Generator")


def dotted_name(path: tuple[Any, ...]) -> str:
    """Return a path as one name: its parts, joined with dots."""
    return ".".join(str(part)[:4096] for part in path)


def _add(found: dict[Any, PartialTensor], key: Any, pieces: PartialTensor) -> None:
    if key in found:
        raise BadFile(f"it holds two tensors that are both called {key!s:.200}")
    found[key] = pieces


def _put(tree: dict[str, Any], path: tuple[Any, ...], leaf: Any) -> None:
    *above, last = path or (STATE_ROLE,)
    for part in above:
        inner = tree.setdefault(str(part), {})
        if not isinstance(inner, dict):
            raise BadFile(f"it holds two values that are both called {dotted_name(path)}")
        tree = inner
    tree[str(last)] = leaf
