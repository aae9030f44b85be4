"""The record of the names that a conversion gave to the parameters of an optimizer, which had only
numbers before.

    {"schema": "zerotools.order/1", "version": "0.2.0",
     "known_by": "the order of the parameters in LlamaForCausalLM of transformers ...",
     "groups": [["model.embed_tokens.weight", ...], ["model.norm.weight", ...]]}

`groups` has the names of each param group, in the order of their numbers. The file lies in the
output of the conversion.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile
from zerotools.core.target import Target
from zerotools.io.files.regular_files import read_regular
from zerotools.io.output.files_without_tensors import file_of_bytes
from zerotools.version import version

NAMED_ORDER = ".zerotools-order.json"
SCHEMA = "zerotools.order/1"
_LARGEST = 2**28


@dataclass(frozen=True, slots=True)
class NamedOrder:
    """The content of the record: the parameter names in the optimizer's order. `known_by` is a
    phrase that says how the names are known.
    """

    known_by: str
    groups: Sequence[Sequence[str]]

    def sentence(self) -> str:
        """Return a sentence for the user that says how the names are known."""
        return f"the order of the optimizer's parameters comes from {self.known_by}"

    def to_json(self) -> str:
        """Return the record as the text of its JSON file."""
        tree = {
            "schema": SCHEMA,
            "version": version(),
            "known_by": self.known_by,
            "groups": [list(group) for group in self.groups],
        }
        return json.dumps(tree, indent=1) + "\n"


def named_order_of(checkpoint: Checkpoint) -> NamedOrder | None:
    """Return the record that belongs to `checkpoint`: the file in the directory that the user
    named, or in the checkpoint's root. Return None if neither has one.

    Raises:
        BadFile: the record is damaged.
    """
    places = dict.fromkeys((checkpoint.origin.path, checkpoint.root))
    found = (read_named_order(place) for place in places)
    return next((record for record in found if record is not None), None)


def read_named_order(directory: Path) -> NamedOrder | None:
    """Return the record in `directory`, or None if the directory has no record. Most checkpoints
    have none, because their files contain the names.

    Raises:
        BadFile: the record is damaged.
    """
    path = directory / NAMED_ORDER
    try:
        tree: Any = json.loads(read_regular(path, _LARGEST, is_source=False))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(
            f"{path} cannot be read ({error!s:.200}); copy or download it again"
        ) from None
    groups = tree.get("groups") if isinstance(tree, dict) else None
    if not isinstance(groups, list) or tree.get("schema") != SCHEMA:
        raise BadFile(
            f"{path} is not a record of the schema {SCHEMA}, or is damaged; copy or download it "
            "again"
        )
    names = [list(map(str, group)) for group in groups if isinstance(group, list)]
    return NamedOrder(str(tree.get("known_by"))[:1000], names)


def with_record(target: Target, record: NamedOrder | None) -> Target:
    """Return `target` with a file that holds `record`. If it is None, return `target` unchanged."""
    if record is None:
        return target
    plan = file_of_bytes(record.to_json().encode())
    checkpoint = target.checkpoint
    return replace(
        target,
        files={**target.files, NAMED_ORDER: plan},
        checkpoint=replace(checkpoint, files={**checkpoint.files, NAMED_ORDER: plan.size}),
    )
