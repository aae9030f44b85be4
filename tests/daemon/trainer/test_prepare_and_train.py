"""Which small files of a model directory and of a tokenizer go into checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA, job
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.trainer.prepare_and_train import sidecars_of

TOKENIZER = {"tokenizer.json", "chat_template.jinja"}
GENERATION, PROCESSOR = {"generation_config.json"}, {"preprocessor_config.json"}


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({"examples": ["/a.jsonl"]}, TOKENIZER | GENERATION | PROCESSOR),
        ({"tokens": ["/a.npy"]}, TOKENIZER | GENERATION | PROCESSOR),
        ({"text": ["/a.txt"], "tokenizer": "model"}, TOKENIZER | GENERATION | PROCESSOR),
        ({"text": ["/a.txt"], "tokenizer": "other"}, {"spiece.model"} | PROCESSOR),
        ({"text": ["/a.txt"]}, PROCESSOR),  # of bytes
    ],
)
def test_what_speaks_of_the_ids_of_the_data_goes_along(
    tmp_path: Path, data: dict[str, Any], names: set[str]
) -> None:
    for name in (*TOKENIZER, *GENERATION, *PROCESSOR, "config.json", "model.safetensors"):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / name).touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "spiece.model").touch()
    if data.get("tokenizer"):
        data = {**data, "tokenizer": str(tmp_path / data["tokenizer"])}
    tree = job(tmp_path / "a", model={"path": str(tmp_path / "model")}, data={"text": [], **data})
    spec = job_from_dict(tree, source="job")
    found = sidecars_of(spec)
    assert set(found) == names
    assert all(path.is_file() for path in found.values())


def test_a_model_without_a_directory_has_its_datas_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    data = {"text": [], "examples": ["/a.jsonl"], "tokenizer": str(tmp_path)}
    tree = job(tmp_path / "a", model={"config": TINY_LLAMA}, data=data)
    assert set(sidecars_of(job_from_dict(tree, source="job"))) == {"tokenizer.json"}
