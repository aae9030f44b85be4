"""The trees and file names of DeepSpeed's files are spelled in `schema` alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from zerotools import formats
from zerotools.formats.deepspeed.schema import state_dict_keys, tag_file_names
from zerotools.formats.deepspeed.schema.tag_file_names import identity_of

PACKAGE = Path(formats.__file__).parent / "deepspeed"
MODULES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.rglob("*.py")
    if path.parent.name != "schema"
)
# Words of other things too: roles of tensors, keys of a configuration, options, what is dropped.
COMMON = {"module", "optimizer", "state", "params", "lr_scheduler", "ds_config"}
KEYS = {
    value
    for name, value in vars(state_dict_keys).items()
    if name.isupper() and isinstance(value, str) and not name.startswith("_")
}
IN_NAMES = ("_model_states.pt", "-model_states.pt", "_optim_states.pt", "pp_rank_", "bf16_")


def strings(tree: ast.Module) -> Iterator[str]:
    """All strings of a module but its docstrings."""
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_string and id(node) not in documents:
            yield node.value


def test_keys_are_known() -> None:
    assert {"partition_count", "base_optimizer_state", "param_slice_mappings"} <= KEYS
    assert {"single_partition_of_fp32_groups", "zero_stage", "param_shapes"} <= KEYS


@pytest.mark.parametrize("module", MODULES)
def test_a_tree_is_spelled_in_schema_alone(module: str) -> None:
    found = set(strings(ast.parse((PACKAGE / module).read_text())))
    assert not found & (KEYS - COMMON), "take the key from schema"
    names = {text for text in found if " " not in text and any(part in text for part in IN_NAMES)}
    assert not names, "make the name with schema.tag_file_names"


def test_no_key_is_spelled_twice_in_schema() -> None:
    spelled = [
        text
        for path in sorted((PACKAGE / "schema").glob("*.py"))
        for text in strings(ast.parse(path.read_text()))
        if text in KEYS - COMMON
    ]
    assert sorted(spelled) == sorted(KEYS - COMMON)


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        (tag_file_names.model_file(3), ("model", "mp 3")),
        (tag_file_names.model_file(3, 12), ("zero3 model", "dp 12", "mp 3")),
        (tag_file_names.optim_file(3, 12), ("optimizer", "dp 12", "mp 3")),
        (tag_file_names.optim_file(3, 12, bf16=True), ("optimizer", "dp 12", "mp 3")),
        (tag_file_names.layer_file(7), ("layer", "layer 7", "tp 0")),
        (tag_file_names.expert_file(1, 5, 0), ("expert", "layer 1", "expert 5", "mp 0")),
    ],
)
def test_a_name_that_is_made_is_read(name: str, identity: tuple[str, ...]) -> None:
    assert identity_of(name) == identity


def test_the_name_on_another_rank() -> None:
    for made in (tag_file_names.optim_file(1, 0, bf16=True), tag_file_names.model_file(1, 0)):
        assert tag_file_names.name_for_rank(made, 11) == made.replace("pp_rank_0_", "pp_rank_11_")
