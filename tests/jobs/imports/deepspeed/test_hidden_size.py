"""The hidden size that "auto" of a DeepSpeed config is computed of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerotools.jobs.imports.deepspeed.hidden_size import hidden_size


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"model_type": "llama", "hidden_size": 64}, 64),
        ({"model_type": "llama"}, 4096),
        ({"model_type": "gpt2", "n_embd": 48}, 48),
        ({"model_type": "own", "hidden_sizes": [8, 32, 16]}, 32),
        ({"model_type": "own", "text_config": {"model_type": "qwen2", "hidden_size": 24}}, 24),
        ({"model_type": "own"}, None),
    ],
)
def test_it_is_that_of_the_class_where_the_config_does_not_say(
    tmp_path: Path, config: dict[str, Any], size: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert hidden_size({"model": {"path": "."}}, tmp_path) == size
    assert hidden_size({"model": {"config": config}}, tmp_path) == size
