"""What a rank's libraries are told before they are loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from zerotoolsd.trainer.run_rank import OF_LIBRARIES

THREADS = """
import os, types
from tokenizers import Tokenizer, models, pre_tokenizers
from zerotoolsd.trainer.data.encoding.token_positions import TextIds
backend = Tokenizer(models.WordLevel({"word": 0}, unk_token="word"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
before = len(os.listdir("/proc/self/task"))
tokenizer = types.SimpleNamespace(is_fast=True, backend_tokenizer=backend)
ids = TextIds(tokenizer).ids(["word word"] * 64)
assert [each.tolist() for each in ids] == [[0, 0]] * 64
print(len(os.listdir("/proc/self/task")) - before)
"""


def threads(variables: dict[str, str]) -> int:
    """How many threads a process has more once it has tokenised."""
    process = subprocess.run(
        [sys.executable, "-c", THREADS],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(json.loads(process.stdout))


@pytest.mark.torch
def test_a_rank_tokenises_in_a_thread_for_every_core() -> None:
    assert threads(OF_LIBRARIES) >= len(os.sched_getaffinity(0))
    assert threads({**OF_LIBRARIES, "TOKENIZERS_PARALLELISM": "false"}) == 0
