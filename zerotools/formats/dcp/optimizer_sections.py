"""Find the optimizers of a DCP, anywhere in its state dict.

    P.state.<fqn>.<role>, P.param_groups.<number>.<option>   torch's get_optimizer_state_dict
    P.state.<fqn>.<role>, P.param_groups.<fqn>.<option>      flattened, P may hold the weights too
    P.state.<number>.<role>, P.param_groups...               optimizer.state_dict() itself
    P.<fqn>.<role>                                           a zerotools job, programs of users

In the first three forms, P may be any path, including the empty path: the param groups show that P
is an optimizer. In the last form, P must have the name of an optimizer, and no value in P may have
the name of a weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zerotools.formats.dcp.key_paths import (
    FlatValue,
    Path,
    is_model_word,
    is_optimizer_word,
    is_option,
    name_below,
    names_a_weight,
    text_of,
)
from zerotools.io.distcp.metadata import SavedTensor

STATE, GROUPS = "state", "param_groups"
# The maximum number of words in a role. Nested state has roles such as `Q.0`.
_DEEPEST_ROLE = 4


@dataclass(frozen=True)
class OptimizerSection:
    """The values of one optimizer in a DCP.

    `state` maps the flat key of each state tensor to (name or number of the parameter, role).
    `trained` are the names of the parameters, empty if the optimizer uses numbers. `rest` are the
    flat keys of all other tensors of the optimizer, such as a learning rate.
    """

    path: Path
    state: Mapping[str, tuple[str, str]]
    trained: frozenset[str]
    rest: frozenset[str] = frozenset()
    tensors: Mapping[str, SavedTensor] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return text_of(self.path) or "the top level"

    @property
    def prefix(self) -> str:
        """The prefix of the optimizer's flat keys."""
        return f"{text_of(self.path)}." if self.path else ""

    @property
    def is_numbered(self) -> bool:
        """True if the optimizer identifies its parameters by number, like torch's state_dict()."""
        return bool(self.state) and all(name.isdecimal() for name, _ in self.state.values())

    def flats(self) -> set[str]:
        return {*self.state, *self.rest}


def find_optimizers(values: Sequence[FlatValue]) -> list[OptimizerSection]:
    """Return all optimizers in the state dict, in its order. Each tensor belongs to at most one
    optimizer.
    """
    grouped = [(path, value) for value in values if (path := _of_groups(value)) is not None]
    # Options are single values. A larger tensor shows that `param_groups` is only a submodule.
    modules = {path for path, value in grouped if not is_option(value)}
    by_groups = dict.fromkeys(path for path, _ in grouped if path not in modules)
    members: dict[Path, list[FlatValue]] = {path: [] for path in by_groups}
    by_words: dict[Path, list[FlatValue]] = {}
    for value in values:
        path = _owner(value, by_groups)
        if path is not None:
            members[path].append(value)
        elif value.tensor is not None and (path := _called_optimizer(value)) is not None:
            by_words.setdefault(path, []).append(value)
    direct = _direct_names(values)
    found = [_with_groups(path, below, direct.get(path, set())) for path, below in members.items()]
    return found + [
        _by_words(path, below) for path, below in by_words.items() if _is_state_only(path, below)
    ]


def _of_groups(value: FlatValue) -> Path | None:
    for at, part in enumerate(value.path):
        if part == GROUPS and at < len(value.path) - 1:
            return value.path[:at]
    if isinstance(last := value.path[-1], str) and last.startswith(f"{GROUPS}."):
        return value.path[:-1]
    return None


def _owner(value: FlatValue, optimizers: Mapping[Path, None]) -> Path | None:
    """Return the path of the optimizer with `value` in its `state` or `param_groups`, or None."""
    for at, part in enumerate(value.path):
        if value.path[:at] not in optimizers:
            continue
        is_last = at == len(value.path) - 1
        if part in (STATE, GROUPS) and not is_last:
            return value.path[:at]
        if is_last and isinstance(part, str) and part.startswith((f"{STATE}.", f"{GROUPS}.")):
            return value.path[:at]
    return None


def _with_groups(path: Path, below: list[FlatValue], direct: set[str]) -> OptimizerSection:
    """Return the optimizer at `path`, which has param groups. `below` are all values below the
    path, and `direct` are the names of the tensors in the same dict.
    """
    depth = len(path)
    grouped = {
        name_below(value, depth + 1).rpartition(".")[0]
        if value.path[depth] == GROUPS
        else name_below(value, depth).removeprefix(f"{GROUPS}.").rpartition(".")[0]
        for value in below
        if _is_group(value, depth)
    }
    # If the dict also holds weights, `state` may be a submodule. Then only values with the name of
    # a weight or of a param group are optimizer state.
    is_mixed = any(not name.startswith((f"{STATE}.", f"{GROUPS}.")) for name in direct)
    known = grouped | direct
    state: dict[str, tuple[str, str]] = {}
    rest: set[str] = set()
    for value in below:
        if value.tensor is None:
            continue
        if _is_group(value, depth):
            rest.add(value.flat)
        elif (split := _name_and_role(value, depth, known)) is not None:
            state[value.flat] = split
        elif not is_mixed or value.path[depth] == STATE:
            rest.add(value.flat)
    if is_mixed:
        named = {value.flat for value in below if value.path[depth] == STATE}
        state = {flat: pair for flat, pair in state.items() if pair[0] in known or flat in named}
    names = {name for name in grouped if not name.isdecimal()}
    return _section(path, state, names, rest, below)


def _is_group(value: FlatValue, depth: int) -> bool:
    part = value.path[depth]
    return part == GROUPS or str(part).startswith(f"{GROUPS}.")


def _direct_names(values: Iterable[FlatValue]) -> dict[Path, set[str]]:
    found: dict[Path, set[str]] = {}
    for value in values:
        if value.tensor is not None:
            found.setdefault(value.path[:-1], set()).add(str(value.path[-1]))
    return found


def _name_and_role(value: FlatValue, depth: int, known: set[str]) -> tuple[str, str] | None:
    """Return the parameter's name and the role in a flat key `P.state.<name>.<role>`, or None.
    Names and roles may contain dots.
    """
    parts = value.path[depth:]
    if parts[0] == STATE:
        parts = parts[1:]
        if len(parts) > 1:
            return str(parts[0]), text_of(parts[1:])
    text = text_of(parts).removeprefix(f"{STATE}.")
    return _split_text(text, known)


def _split_text(text: str, known: set[str] | frozenset[str]) -> tuple[str, str] | None:
    name, _, role = text.rpartition(".")
    longest = name
    for _ in range(_DEEPEST_ROLE):
        if longest in known:
            return longest, text[len(longest) + 1 :]
        longest = longest.rpartition(".")[0]
    return (name, role) if name and role else None


def _called_optimizer(value: FlatValue) -> Path | None:
    """Return the path of the outermost dict around `value` that has an optimizer's name and is not
    inside a model, or None.
    """
    for at, part in enumerate(value.path[:-1]):
        if is_optimizer_word(part):
            return value.path[: at + 1]
        if is_model_word(part):
            return None
    return None


def _is_state_only(path: Path, below: list[FlatValue]) -> bool:
    return all(
        (split := _plain_split(value, len(path))) is not None and not names_a_weight(split[1])
        for value in below
    )


def _plain_split(value: FlatValue, depth: int) -> tuple[str, str] | None:
    parts = value.path[depth:]
    if len(parts) > 2 and parts[0] == STATE:
        parts = parts[1:]
    if len(parts) > 1:
        return text_of(parts[:-1]), str(parts[-1])
    return _split_text(text_of(parts), frozenset())


def _by_words(path: Path, below: list[FlatValue]) -> OptimizerSection:
    split = {value.flat: _plain_split(value, len(path)) for value in below}
    state = {flat: pair for flat, pair in split.items() if pair is not None}
    return _section(path, state, set(), set(), below)


def _section(
    path: Path,
    state: Mapping[str, tuple[str, str]],
    names: set[str],
    rest: Iterable[str],
    below: Iterable[FlatValue],
) -> OptimizerSection:
    trained = {name for name, _ in state.values() if not name.isdecimal()} | names
    tensors = {value.flat: value.tensor for value in below if value.tensor is not None}
    return OptimizerSection(path, state, frozenset(trained), frozenset(rest), tensors)
