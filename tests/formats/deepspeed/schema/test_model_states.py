"""Names of a model file's lists that its state dict has otherwise."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.formats.deepspeed.reading.test_versions import rewrite
from tests.golden_files import DEEPSPEED
from zerotools.formats import read
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings
from zerotools.formats.deepspeed.schema.model_states import CHECKPOINTED
from zerotools.formats.deepspeed.writing.lay_out_resharded import lay_out
from zerotools.io.torchzip.pickle_values import Ordered

LISTS = ("param_shapes", "frozen_param_shapes", "frozen_param_fragments", "shared_params")


def wrapped(name: str) -> str:
    """The name of a parameter in a wrapper around its module."""
    module, _, rest = name.partition(".")
    return f"{module}.{CHECKPOINTED}{rest}" if rest else name


def in_wrapper(value: Any) -> Any:
    """A list of names, or a mapping by names, as a wrapped model lists them."""
    if isinstance(value, list):
        return [in_wrapper(each) for each in value]
    if isinstance(value, str):
        return wrapped(value)
    if isinstance(value, dict):
        kind = Ordered if isinstance(value, Ordered) else dict
        named = {wrapped(name): each for name, each in value.items()}
        shared = {name: wrapped(v) if isinstance(v, str) else v for name, v in named.items()}
        return kind(shared)
    return value


def of_wrapped_model(tree: dict[str, Any]) -> None:
    for key in (*LISTS, "buffer_names"):
        if key in tree:
            tree[key] = in_wrapper(tree[key])
    inner = tree.get("optimizer_state_dict")
    if inner is not None and "param_slice_mappings" in inner:
        inner["param_slice_mappings"] = in_wrapper(inner["param_slice_mappings"])


@pytest.mark.parametrize(("case", "stage"), [("z2-bf16-w2", 3), ("z3-bf16-w2", 2)])
def test_a_wrapper_that_state_dicts_leave_out(case: str, stage: int, tmp_path: Path) -> None:
    """Of torch's `checkpoint_wrapper`: `named_parameters` has its name, a state dict has not."""
    expected = contents(read(DEEPSPEED / case / "checkpoint"))
    plain = read(DEEPSPEED / case / "checkpoint")
    shutil.copytree(DEEPSPEED / case / "checkpoint", tmp_path / "saved")
    for path in (tmp_path / "saved").glob("*/*.pt"):
        rewrite(path, of_wrapped_model)
    source = read(tmp_path / "saved")
    assert any(CHECKPOINTED in key.name for key in source.tensors)

    def bare(found: dict[str, Any]) -> dict[str, Any]:
        return {key.replace(CHECKPOINTED, ""): value for key, value in found.items()}

    assert bare(contents(source)) == expected
    assert not source.problems
    settings = ZeroSettings(stage=stage)
    there, plain_there = (
        contents(read(write(each, lay_out(each, tmp_path / name, world_size=3, settings=settings))))
        for each, name in ((source, "out"), (plain, "plain"))
    )
    assert bare(there) == plain_there
