from __future__ import annotations

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.golden_files import JOB
from tests.ops.exports import BF16, export, masters, model, noise, weights_of
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.numeric.dtype_casts import Array


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    """A model like the job's: one layer norm stays fp32, the tied head is written too."""
    tensors = {name: values.astype(ml_dtypes.bfloat16) for name, values in masters(JOB).items()}
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float32)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    return model(tmp_path / "like", tensors, tokenizer__json="{}", config__json='{"other": 1}')


def test_names_and_types_are_the_reference_s(reference: Path, tmp_path: Path) -> None:
    exported = export(JOB, tmp_path / "out", like=reference)
    wanted = weights_of(reference)
    assert {n: v.dtype for n, v in exported.items()} == {n: v.dtype for n, v in wanted.items()}
    norm = masters(JOB)["model.norm.weight"]
    assert exported["model.norm.weight"].tobytes() == norm.tobytes()
    assert exported["lm_head.weight"].tobytes() == exported["model.embed_tokens.weight"].tobytes()


def test_files_of_a_kind_are_taken_where_the_checkpoint_has_none(
    reference: Path, tmp_path: Path
) -> None:
    export(JOB, tmp_path / "out", like=reference)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["model_type"] == "llama"
    assert (tmp_path / "out/tokenizer.json").read_text() == "{}"
    bare = tmp_path / "step-00000003"
    shutil.copytree(JOB, bare)
    (bare / "config.json").unlink()
    manifest = json.loads((bare / "MANIFEST.json").read_text())
    del manifest["files"]["config.json"]
    (bare / "MANIFEST.json").write_text(json.dumps(manifest))
    export(bare, tmp_path / "second", like=reference)
    assert json.loads((tmp_path / "second/config.json").read_text())["other"] == 1


def test_every_mismatch_is_listed_before_anything_is_written(tmp_path: Path) -> None:
    tensors = {"a": noise(2, 3), "b": noise(4), "n": np.arange(3), "x": noise(1)}
    ours = model(tmp_path / "in", tensors)
    like: dict[str, Array] = {
        "a": noise(3, 2).astype(BF16),
        "b": noise(4).astype(np.float16),
        "n": noise(3),
        "more": noise(5),
    }
    with pytest.raises(BadRequest) as caught:
        export(ours, tmp_path / "out", like=model(tmp_path / "like", like))
    assert str(caught.value).splitlines() == [
        f"the export of {ours} does not match {tmp_path / 'like'}: 4 mismatches",
        "  missing: more, float32 of shape [5]",
        "  extra: x, bfloat16 of shape [1]",
        "  shape: a is [2, 3], not [3, 2]",
        "  dtype: n is int64, not float32",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "like"]


def test_a_type_that_is_asked_for_must_be_the_reference_s(reference: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"1 mismatch\n  dtype: model\.norm\.weight is bf"):
        export(JOB, tmp_path / "out", like=reference, dtype="bf16")


def test_only_the_wanted_names_are_compared(reference: Path, tmp_path: Path) -> None:
    exported = export(JOB, tmp_path / "out", like=reference, include=("*norm*",))
    assert "model.norm.weight" in exported
    exported = export(
        JOB,
        tmp_path / "second",
        like=reference,
        rename=(r"^model\.=base.", r"^base\.=model."),
        exclude=("lm_head.*",),
    )
    assert "lm_head.weight" not in exported


def test_a_reference_without_safetensors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match=r"has no \*.safetensors file"):
        export(JOB, tmp_path / "out", like=tmp_path / "empty")
