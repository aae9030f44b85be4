"""DCP's flat keys and what they mean: which name, which role.

    model.<fqn>                         (fqn, param)
    optim.<fqn>.<state>                 (fqn, state)      a zerotools job
    optimizer.state.<fqn>.<state>       (fqn, state)      accelerate, torchtitan
    optim.state.<fqn>.<state>           (fqn, state)      same, beside optim.param_groups
    <fqn>                               (fqn, param)      torchtitan, a bare state dict

Names contain dots, so the path that planner_data records is used where it splits the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zerotools.core.checkpoint import Key

_SECTIONS = ("model", "optim", "optimizer")
_OTHER_STATE = ("lr_scheduler", "dataloader", "train_state", "scheduler")
STATE_ROLE = "state"


@dataclass(frozen=True)
class Names:
    """How the keys of one checkpoint are read. `sectioned` says whether a flat `model.` is a
    section of the checkpoint; otherwise it is part of the name. `whole` are the sections that hold
    an optimizer's whole state_dict: `state` and `param_groups`."""

    paths: Mapping[str, tuple[str | int, ...]]
    sectioned: bool
    whole: frozenset[str] = frozenset({"optimizer"})

    @classmethod
    def of(cls, keys: Iterable[str], paths: Mapping[str, tuple[str | int, ...]] | None) -> Names:
        keys, known = list(keys), paths or {}
        flat = [key for key in keys if len(known.get(key, ())) <= 1]
        sections = {key.partition(".")[0] for key in flat}
        # Where paths were recorded, a key of one part is a name as the state dict had it, and all
        # of a Hugging Face model's may begin with "model.".
        sectioned = bool(sections & {"optim", "optimizer"}) or (sections == {"model"} and not known)
        groups = any(key.startswith("optim.param_groups.") for key in keys)
        return cls(known, sectioned, frozenset({"optim", "optimizer"} if groups else {"optimizer"}))

    def key_of(self, flat: str) -> Key:
        """The name and role that a flat key stands for."""
        path = self.paths.get(flat, ())
        section = str(path[0]) if len(path) > 1 else flat.partition(".")[0]
        nested = len(path) > 1
        rest = flat[len(section) + 1 :]
        if not rest or not (nested or self.sectioned):
            return Key(flat, "param")
        if section == "model":
            return Key(rest, "param")
        if section in _OTHER_STATE:
            return Key(flat, STATE_ROLE)
        if section not in _SECTIONS:
            return Key(flat, "param") if not nested else Key(flat, STATE_ROLE)
        if section in self.whole:
            if not rest.startswith("state."):
                return Key(flat, STATE_ROLE)
            rest = rest.removeprefix("state.")
        role = str(path[-1]) if nested and len(path) > 2 else rest.rpartition(".")[2]
        name = rest.removesuffix(f".{role}")
        return Key(name, role) if name != rest and name else Key(flat, STATE_ROLE)


def keys_of(flat_keys: Iterable[str], names: Names) -> dict[str, Key]:
    """Each flat key's Key; two that would be one keep their whole flat key as the name."""
    found: dict[str, Key] = {}
    taken: set[Key] = set()
    for flat in flat_keys:
        key = names.key_of(flat)
        if key in taken:
            key = Key(flat, key.role)
        taken.add(key)
        found[flat] = key
    return found
