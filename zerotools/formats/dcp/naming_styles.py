"""The names that programs use for a model and its optimizer in the state dict of a DCP.

torch        {"model": get_model_state_dict(...), "optimizer": get_optimizer_state_dict(...)}
accelerate   the same two dicts, each in a separate directory
torchtitan   the weights at the top level, the optimizer state flattened by parameter
             (`flatten_optimizer_state_dict=True`)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zerotools.core.errors import BadRequest
from zerotools.core.training_state import ParamGroup

OPTIMIZER = "optimizer"


class KeyPath(NamedTuple):
    """The flat key of a value and its path in the nested state dict (planner_data)."""

    flat: str
    path: tuple[str | int, ...]


def _nested(*path: str | int) -> KeyPath:
    return KeyPath(".".join(map(str, path)), path)


@dataclass(frozen=True, slots=True)
class DcpStyle:
    """The names that a program gives to the values in a DCP. `model` and `optimizer` are the
    directories, below the root, that hold the model and its optimizer.
    """

    name: str
    model: str = ""
    optimizer: str = ""
    is_flat: bool = False

    def weight(self, name: str) -> KeyPath:
        return _nested(name) if self.is_flat else _nested("model", name)

    def state(self, name: str, role: str) -> KeyPath:
        if self.is_flat:
            return _nested(OPTIMIZER, f"state.{name}.{role}")
        return _nested(OPTIMIZER, "state", name, role)

    def groups(self, groups: Sequence[ParamGroup]) -> Iterator[tuple[KeyPath, Any]]:
        """Yield the flat key and the value of each option of the param groups. A style with flat
        names repeats every option for every parameter.
        """
        for number, group in enumerate(groups):
            if self.is_flat:
                for name in group.params:
                    for option, value in group.options.items():
                        yield _nested(OPTIMIZER, f"param_groups.{name}.{option}"), value
            else:
                for option, value in group.options.items():
                    yield _nested(OPTIMIZER, "param_groups", number, option), value
                yield _nested(OPTIMIZER, "param_groups", number, "params"), list(group.params)


STYLES: Mapping[str, DcpStyle] = {
    style.name: style
    for style in (
        DcpStyle("torch"),
        DcpStyle("accelerate", "pytorch_model_fsdp_0/", "optimizer_0/"),
        DcpStyle("torchtitan", is_flat=True),
    )
}


def style_of(name: str) -> DcpStyle:
    """Return the naming style called `name`.

    Raises:
        BadRequest: there is no style with this name.
    """
    if name not in STYLES:
        raise BadRequest(f"{name!r} is not a naming style of a DCP; use one of {', '.join(STYLES)}")
    return STYLES[name]
