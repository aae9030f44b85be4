"""Select and rename the tensors of a checkpoint, and change their dtypes. No tensor data is read.

`weights_from`, `name_matcher` and `choose_names` select the weights of an export, and
`name_function` makes their new names from the rules of the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import BFLOAT16, FLOAT16, DType
from zerotools.core.errors import BadRequest


def rename_tensors(checkpoint: Checkpoint, new_name: Callable[[str], str]) -> Checkpoint:
    """Return the same tensors and aliases under other names. An alias is dropped if it gets the
    name of its own tensor.

    Raises:
        BadRequest: two different names would become the same name.
    """
    old_names: dict[str, str] = {}

    def renamed(name: str) -> str:
        new = new_name(name)
        if old_names.setdefault(new, name) != name:
            raise BadRequest(f"{old_names[new]} and {name} would both become {new}")
        return new

    tensors = {Key(renamed(key.name), key.role): t for key, t in checkpoint.tensors.items()}
    aliases = {
        renamed(alias): new_name(name)
        for alias, name in checkpoint.aliases.items()
        if new_name(alias) != new_name(name)
    }
    problems = [
        replace(problem, tensor=new_name(problem.tensor))
        if problem.is_unread and problem.tensor is not None
        else problem
        for problem in checkpoint.problems
    ]
    return replace(checkpoint, tensors=tensors, aliases=aliases, problems=problems)


def describe_output(checkpoint: Checkpoint, dtype_of: Callable[[Key, Tensor], DType]) -> Checkpoint:
    """Return the tensors with the dtypes of an output, and without chunks."""
    tensors: Mapping[Key, Tensor] = {
        key: Tensor(dtype_of(key, tensor), tensor.shape, ())
        for key, tensor in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)


@dataclass(frozen=True, slots=True)
class RenameRule:
    r"""A rule that replaces every match of `pattern` in a name by `replacement` (`\1` is the first
    group)."""

    pattern: re.Pattern[str]
    replacement: str


def parse_rule(text: str) -> RenameRule:
    """Parse a rule `REGEX=REPL`. The last `=` separates the two, so that `(?=...)` can be used.

    Raises:
        BadRequest: the text has no `=`, or its regular expression or a group number is invalid.
    """
    pattern, equals, replacement = text.rpartition("=")
    if not equals or not pattern:
        raise BadRequest(f"--rename {text!r} is not REGEX=REPL")
    try:
        compiled = re.compile(pattern)
        compiled.sub(replacement, "")  # reads the replacement, match or not
    except (re.error, IndexError) as error:
        raise BadRequest(f"--rename {text!r}: {error}") from None
    return RenameRule(compiled, replacement)


def name_function(prefixes: Sequence[str], rules: Sequence[RenameRule]) -> Callable[[str], str]:
    """Return a function that makes a new name from an old one. It raises BadRequest if a name
    becomes empty.

    Each prefix is removed once if the name begins with it, in the order given. Then each rule is
    applied.
    """

    def renamed(name: str) -> str:
        new = name
        for prefix in prefixes:
            new = new.removeprefix(prefix)
        for rule in rules:
            new = rule.pattern.sub(rule.replacement, new)
        if not new:
            raise BadRequest(
                f"the name {name} would become empty; correct --rename or --strip-prefix"
            )
        return new

    return renamed


SIXTEEN_BIT = (FLOAT16, BFLOAT16)
MASTERS, WEIGHTS = "masters", "weights"


def weights_from(checkpoint: Checkpoint, choice: str) -> Checkpoint:
    """Return only the parameters and buffers, with the roles `param` and `buffer`.

    If `choice` is "masters", a parameter is its fp32 master, or its 16-bit copy if it has no
    master. If it is "weights", a parameter is its 16-bit copy, or its only tensor if it was not
    trained.

    Raises:
        BadRequest: `choice` is "weights", but the checkpoint has only masters.
    """
    if choice == WEIGHTS:
        _require_copies(checkpoint)
    first, second = ("param16", "param") if choice == WEIGHTS else ("param", "param16")
    tensors: dict[Key, Tensor] = {}
    for key, tensor in checkpoint.tensors.items():
        instead = key.role == second and Key(key.name, first) not in checkpoint.tensors
        if key.role in ("buffer", first) or instead:
            tensors[_as_weight(key)] = tensor
    return replace(checkpoint, tensors=tensors)


def _as_weight(key: Key) -> Key:
    return key if key.role == "buffer" else Key(key.name, "param")


def _require_copies(checkpoint: Checkpoint) -> None:
    roles = {key.role for key in checkpoint.tensors}
    wide = any(
        key.role == "param" and tensor.dtype.is_float and tensor.dtype not in SIXTEEN_BIT
        for key, tensor in checkpoint.tensors.items()
    )
    if "param16" not in roles and wide:
        raise BadRequest(
            f"{checkpoint.origin.path} has no 16-bit weights next to its masters; leave --from "
            "weights out"
        )


def name_matcher(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that returns whether a name is selected: it matches one of `include`
    (empty: any name does), and none of `exclude`."""

    def is_selected(name: str) -> bool:
        if include and not any(fnmatchcase(name, glob) for glob in include):
            return False
        return not any(fnmatchcase(name, glob) for glob in exclude)

    return is_selected


def choose_names(checkpoint: Checkpoint, is_selected: Callable[[str], bool]) -> Checkpoint:
    """Return the checkpoint with only the selected tensors and tied names.

    If the name that holds the bytes is not selected, but a name tied to it is, the bytes get the
    tied name.
    """
    tensors = {key: tensor for key, tensor in checkpoint.tensors.items() if is_selected(key.name)}
    holders: dict[str, str] = {key.name: key.name for key in tensors if key.role == "param"}
    aliases: dict[str, str] = {}
    for alias, name in checkpoint.aliases.items():
        tensor = checkpoint.tensors.get(Key(name, "param"))
        if tensor is None or not is_selected(alias):
            continue
        if name in holders:
            aliases[alias] = holders[name]
        else:
            tensors[Key(alias, "param")] = tensor
            holders[name] = alias
    problems = [
        problem
        for problem in checkpoint.problems
        if not problem.is_unread or problem.tensor is None or is_selected(problem.tensor)
    ]
    return replace(checkpoint, tensors=tensors, aliases=aliases, problems=problems)
