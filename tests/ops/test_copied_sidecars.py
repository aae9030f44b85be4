"""Config and tokenizer of an export, from wherever trainers leave them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED, JOB, TORCH
from tests.ops.exports import model, noise
from zerotools.core.errors import BadRequest
from zerotools.ops.conversions import consolidate, convert
from zerotools.ops.conversions.consolidate import Options
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.copied_sidecars import requested_sidecars
from zerotools.ops.execution.tile_workers import MemoryBudget

DCP = TORCH / "fsdp2-dcp-w3" / "checkpoint" / "pytorch_model_fsdp_0"


def base(directory: Path, name: str) -> None:
    """A model directory without weights."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"is": name}))
    (directory / "tokenizer.json").write_text(json.dumps(name))
    (directory / "tokenizer_config.json").write_text(json.dumps(name))


def written(conversion: Conversion) -> dict[str, str]:
    """Whose config and tokenizer the output has."""
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    out = conversion.destination
    found = {name: out / name for name in ("config.json", "tokenizer.json")}
    text = {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}
    return {
        n: tree.get("is", tree.get("model_type")) if n == "config.json" else tree
        for n, tree in text.items()
    }


@pytest.mark.parametrize("source", [DCP, DEEPSPEED / "z2-bf16-w2" / "checkpoint"])
def test_weights_that_nothing_loads_are_warned_of(tmp_path: Path, source: Path) -> None:
    copy = shutil.copytree(source, tmp_path / "saved")
    conversion = consolidate.prepare_export(copy, tmp_path / "out", Options())
    assert conversion.lacking is not None
    assert "pass --config-dir DIR" in conversion.lacking
    assert written(conversion) == {}
    base(tmp_path / "base", "mine")
    again = consolidate.prepare_export(
        copy, tmp_path / "whole", Options(), config_dir=tmp_path / "base"
    )
    assert again.lacking is None
    assert written(again) == {"config.json": "mine", "tokenizer.json": "mine"}


@pytest.mark.parametrize(
    ("checkpoint", "beside"),
    [
        ("run/checkpoint-40/pytorch_model_fsdp_0", "run/checkpoint-40"),  # the Trainer with FSDP
        ("run/checkpoint-40/pytorch_model_fsdp_0", "run"),  # trainer.save_model()
        ("run/checkpoints/checkpoint_3/pytorch_model_fsdp_0", "run"),  # accelerate
        ("run/global_step_7/actor", "run/global_step_7/actor/huggingface"),  # verl
        ("run/step-00000040/dcp", "run/step-00000040"),  # a job
        ("run/step-40", "run"),  # torchtitan
    ],
)
def test_they_are_taken_from_where_trainers_leave_them(
    tmp_path: Path, checkpoint: str, beside: str
) -> None:
    copy = shutil.copytree(DCP, tmp_path / checkpoint)
    base(tmp_path / beside, "theirs")
    conversion = consolidate.prepare_export(copy, tmp_path / "out", Options())
    assert f"took config.json, tokenizer.json, tokenizer_config.json from {tmp_path / beside}" in (
        *conversion.notes,
        *(
            f"took {', '.join(sorted(conversion.source.model_sidecars))} from {path.parent}"
            for path in conversion.source.model_sidecars.values()
        ),
    )
    assert written(conversion) == {"config.json": "theirs", "tokenizer.json": "theirs"}


def test_a_directory_that_is_not_a_runs_is_not_searched(tmp_path: Path) -> None:
    copy = shutil.copytree(DCP, tmp_path / "models" / "mine")
    base(tmp_path / "models", "another")
    conversion = consolidate.prepare_export(copy, tmp_path / "out", Options())
    assert conversion.lacking is not None
    assert conversion.source.model_sidecars == {}


def test_the_checkpoints_own_come_before_others_and_after_what_was_asked_for(
    tmp_path: Path,
) -> None:
    job = shutil.copytree(JOB, tmp_path / "run" / JOB.name)
    base(tmp_path / "run", "around")
    own = json.loads((job / "config.json").read_text())["model_type"]
    found = written(consolidate.prepare_export(job, tmp_path / "out", Options()))
    assert found == {"config.json": own, "tokenizer.json": "around"}
    base(tmp_path / "base", "asked")
    asked = consolidate.prepare_export(
        job, tmp_path / "two", Options(), config_dir=tmp_path / "base"
    )
    assert written(asked) == {"config.json": "asked", "tokenizer.json": "asked"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadRequest, match=r"empty has no config\.json and no tokenizer"):
        consolidate.prepare_export(
            job, tmp_path / "three", Options(), config_dir=tmp_path / "empty"
        )


def test_convert_to_safetensors_does_the_same(tmp_path: Path) -> None:
    weights = model(tmp_path / "in", {"w": noise(4, 5)})
    done = convert.prepare_convert(weights, tmp_path / "out", "safetensors", {})
    assert isinstance(done, Conversion)
    assert done.lacking is not None


def test_the_config_itself_names_its_directory_and_what_is_none_is_said(tmp_path: Path) -> None:
    base(tmp_path / "base", "mine")
    assert set(requested_sidecars(tmp_path / "base" / "config.json")) == set(
        requested_sidecars(tmp_path / "base")
    )
    with pytest.raises(BadRequest, match=r"tokenizer\.json is a file; pass the directory"):
        requested_sidecars(tmp_path / "base" / "tokenizer.json")
    with pytest.raises(BadRequest, match="nowhere does not exist"):
        requested_sidecars(tmp_path / "nowhere")


def test_a_checkpoint_that_is_a_file_has_what_lies_beside_it(tmp_path: Path) -> None:
    path = model(tmp_path / "run" / "checkpoint-5", {"w": noise(2, 3)}) / "model.safetensors"
    base(tmp_path / "run", "above")
    above = consolidate.prepare_export(path, tmp_path / "above", Options(check_names=False))
    assert written(above) == {"config.json": "above", "tokenizer.json": "above"}
    base(path.parent, "beside")
    beside = consolidate.prepare_export(path, tmp_path / "beside", Options(check_names=False))
    assert written(beside) == {"config.json": "beside", "tokenizer.json": "beside"}
    assert f"took {', '.join(TAKEN)} from {path.parent}" in beside.notes


TAKEN = ("config.json", "tokenizer.json", "tokenizer_config.json")


def test_code_and_more_templates_come_along(tmp_path: Path) -> None:
    tree = {"model_type": "foo", "auto_map": {"AutoModel": "modeling_foo.FooModel"}}
    source = model(tmp_path / "in", {"a.weight": noise(2, 2)}, config__json=json.dumps(tree))
    (source / "modeling_foo.py").write_text("from .helper import x\n")
    (source / "helper.py").touch()
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tools.jinja").write_text("{{ a }}")
    conversion = consolidate.prepare_export(source, tmp_path / "out", Options())
    assert conversion.lacking is None
    written(conversion)
    beside = {"modeling_foo.py", "helper.py", "additional_chat_templates/tools.jinja"}
    for name in beside:
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


def test_code_that_is_missing_is_warned_of(tmp_path: Path) -> None:
    tree = {"model_type": "foo", "auto_map": {"AutoModel": "modeling_foo.FooModel"}}
    source = model(tmp_path / "in", {"a.weight": noise(2, 2)}, config__json=json.dumps(tree))
    conversion = consolidate.prepare_export(source, tmp_path / "out", Options())
    assert conversion.lacking == (
        f"modeling_foo.py, the code of the model that config.json or the tokenizer names, is not "
        f"in {source}, and from_pretrained needs it to load the output: copy it into the output"
    )
