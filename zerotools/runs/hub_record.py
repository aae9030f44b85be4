"""The part of job.json with the Hub's form of the model's tensors: `core.hub_layout` as JSON.

    {"model.layers.0.mlp.experts.gate_up_proj": [
       {"tensor": "model.layers.0.mlp.experts.0.gate_proj.weight", "shape": [32, 16],
        "start": [0, 0, 0], "size": [1, 32, 16]}, ...]}

`start` and `size` are the block in the job's tensor; by default it has the Hub's shape and begins
at 0. `offset` and `strides`, in elements, are the block's position in the Hub's tensor; by default
it is contiguous from the beginning. Tensors that are the same on the Hub are not listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.hub_layout import HubBlock, HubLayout, renamed


def hub_to_tree(layout: HubLayout) -> dict[str, list[dict[str, Any]]]:
    """Return the JSON value of `layout`."""
    return {name: [_to_tree(block) for block in blocks] for name, blocks in layout.items()}


def _to_tree(block: HubBlock) -> dict[str, Any]:
    tree: dict[str, Any] = {"tensor": block.name, "shape": list(block.shape)}
    if block.box != Box.whole(block.shape):
        tree |= {"start": list(block.box.start), "size": list(block.box.shape)}
    if block.offset:
        tree["offset"] = block.offset
    if block.strides is not None:
        tree["strides"] = list(block.strides)
    return tree


def hub_from_tree(tree: Any) -> dict[str, tuple[HubBlock, ...]]:
    """Return the layout that `hub_to_tree` wrote.

    Raises:
        ValueError: it is malformed; the text follows the name of the field.
    """
    if not isinstance(tree, dict):
        raise ValueError("must be a table")
    return {name: _blocks(name, blocks) for name, blocks in tree.items()}


def _blocks(name: str, value: Any) -> tuple[HubBlock, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} must be a list of blocks")
    return tuple(_block(name, each) for each in value)


def _block(name: str, tree: Any) -> HubBlock:
    if not isinstance(tree, dict) or not isinstance(tree.get("tensor"), str):
        raise ValueError(f"{name} has a block without the name of a tensor")
    whole = renamed(tree["tensor"], _counts(name, tree, "shape"))
    box = Box(
        _counts(name, tree, "start") if "start" in tree else whole.box.start,
        _counts(name, tree, "size") if "size" in tree else whole.box.shape,
    )
    offset = tree.get("offset", 0)
    strides = _counts(name, tree, "strides") if "strides" in tree else None
    block = HubBlock(whole.name, whole.shape, box, offset, strides)
    sizes = {len(box.start), len(box.shape), len(block.steps)}
    if type(offset) is not int or offset < 0 or len(sizes) > 1:
        raise ValueError(f"{name} has a block of {whole.name} with {tree!r:.200}")
    if not box.is_empty and block.last >= Box.whole(whole.shape).numel:
        raise ValueError(f"{name} has a block that ends outside of {whole.name}")
    return block


def _counts(name: str, tree: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = tree.get(key)
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError(f"{name} has a block with {key} = {value!r:.80}, not a list of counts")
    return tuple(value)
