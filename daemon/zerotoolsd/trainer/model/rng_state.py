"""Saves and restores the random number generators of a rank, so that dropout continues after a
restart as if the run had not been interrupted.
"""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import torch

from zerotools.core.errors import BadFile
from zerotoolsd.trainer.model.initialise_from_seed import seed_from


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Seed all random number generators of this process from (seed, step, rank)."""
    number = seed_from("rank", seed, step, rank)
    random.seed(number)
    torch.manual_seed(number)


def capture_rng() -> str:
    """Return the state of all random number generators as JSON text."""
    version, words, gauss = random.getstate()
    tree: dict[str, Any] = {
        "torch": _encode(torch.get_rng_state()),
        "cuda": _encode(torch.cuda.get_rng_state()) if torch.cuda.is_initialized() else None,
        "python": [version, list(words), gauss],
    }
    return json.dumps(tree) + "\n"


def restore_rng(path: Path) -> None:
    """Restore all random number generators from the file `path`, which has the text of
    `capture_rng`.

    Raises:
        BadFile: the file is not a state of random number generators.
    """
    try:
        tree = json.loads(path.read_bytes())
        version, words, gauss = tree["python"]
        random.setstate((version, tuple(words), gauss))
        torch.set_rng_state(_decode(tree["torch"]))
        if tree["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(_decode(tree["cuda"]))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise BadFile(
            f"{path} does not have the states of the random number generators: {error}"
        ) from error


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
