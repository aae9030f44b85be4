"""Golden cases, resharded and handed to real DeepSpeed; what it then holds is compared bit for bit.

Needs no torch itself: the ranks that `judge.py` describes run as processes of their own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.golden_files import DEEPSPEED, GOLDEN, digests
from zerotools import __version__
from zerotools.core.checkpoint import Checkpoint
from zerotools.formats import read, training_of
from zerotools.formats.deepspeed.schema.ds_config import AS_IS, ZeroSettings
from zerotools.formats.deepspeed.universal.lay_out import lay_out_universal
from zerotools.formats.deepspeed.writing.lay_out_resharded import lay_out

from .launch import launch

# Those whose engines are Hugging Face's, or that are universal, pipelines and the like.
OTHER_ENGINES = (
    "universal", "pipeline", "tensor-parallel", "experts", "autoep", "z0-", "hf-trainer",
)  # fmt: skip
# Those that DeepSpeed 0.19.8 itself cannot load again as they were.
LEFT_OUT = (
    "z3-fp32-w2-adagrad",
    "bf16-w2-muon",  # torch casts momenta to the type of the masters as it loads them
)
LAUNCHED_TOGETHER = 20
INSTALLED = "0.19.8"


@dataclass(frozen=True)
class Move:
    """A golden case of a version of DeepSpeed that is laid out anew, for a run of the same or of
    other ZeRO settings, and of the version that is installed; or made universal. `expert_ranks` are
    AutoEP's in that run, if they change."""

    case: str
    settings: ZeroSettings = AS_IS
    version: str = INSTALLED
    expert_ranks: int | None = None
    is_universal: bool = False

    @property
    def golden(self) -> Path:
        """The directory of the case."""
        return GOLDEN / f"deepspeed-{self.version}" / self.case

    @property
    def changes(self) -> dict[str, Any]:
        """What the configuration of the run that loads it says instead."""
        asked = {
            "stage": self.settings.stage,
            "sub_group_size": self.settings.sub_group_size,
            "round_robin_gradients": self.settings.round_robin,
            "autoep_size": self.expert_ranks,
            "load_universal": self.is_universal or None,
        }
        return {key: value for key, value in asked.items() if value is not None}

    def given(self, out: Path, ranks: int) -> None:
        """Write what the run loads."""
        source = read(self.golden / "checkpoint")
        if self.is_universal:
            write(source, lay_out_universal(source, training_of(source), out))
            return
        settings = self.settings
        if self.expert_ranks is not None:
            table = {"expert_parallel": {"enabled": True, "autoep_size": self.expert_ranks}}
            settings = ZeroSettings(ds_config={**_configuration(source), **table})
        reshard(source, out, ranks, settings)

    @property
    def asked(self) -> list[str]:
        """The changes, as parts of a name."""
        return [f"{key}-{value}" for key, value in self.changes.items()]

    def __str__(self) -> str:
        version = [] if self.version == INSTALLED else [self.version]
        return "-".join([self.case, *version, *self.asked])


def judged_cases() -> list[str]:
    """Golden cases that real DeepSpeed can judge."""
    return sorted(
        path.parent.name
        for path in DEEPSPEED.glob("*/truth.json")
        if not path.parent.name.startswith(OTHER_ENGINES)
        and not any(word in path.parent.name for word in LEFT_OUT)
    )


def reshard(
    source: Checkpoint, out: Path, ranks: int, settings: ZeroSettings = AS_IS
) -> Checkpoint:
    """Write `source` for `ranks` ranks, and read it again."""
    return read(write(source, lay_out(source, out, world_size=ranks, settings=settings)))


def differences(
    moves: Iterable[Move], ranks: int, directory: Path, judge: str = "judge"
) -> list[str]:
    """Reshard golden cases to `ranks`, let DeepSpeed load them in one launch; what is not equal.
    `judge` is the module that the ranks run."""
    todo = list(moves)
    for move in todo:
        home = directory / str(move)
        home.mkdir()
        move.given(home / "given", ranks)
    told = [(move.case, str(move), move.changes) for move in todo]
    (directory / "moves.json").write_text(json.dumps(told))
    launch(f"tests.golden.deepspeed_runs.{judge}", ["moves.json"], ranks, directory)
    return [found for move in todo for found in _differences(move, ranks, directory / str(move))]


def _differences(move: Move, ranks: int, directory: Path) -> Iterator[str]:
    where = f"{move} at {ranks} ranks"
    live = digests(directory / "truth.safetensors")
    for key, expected in digests(move.golden / "truth.safetensors").items():
        is_cast = move.version != INSTALLED and key.endswith("|buffer")
        if live.get(key) != expected and not is_cast and not _is_excluded(move.case, key):
            yield f"{where}: the engine has another {key}"
    source, again = read(move.golden / "checkpoint"), read(directory / "again")
    before = contents(source)
    for key in _unlike(before, contents(again), move):
        yield f"{where}: what DeepSpeed saved again has another {key}"
    if not source.origin.stage or move.is_universal:
        return  # to which nothing is laid out, or of another stage
    own = ZeroSettings(ds_config=_configuration(source)) if move.changes else AS_IS
    back = reshard(again, directory / "back", source.origin.world_size or 1, own)
    for key in _unlike(before, contents(back), move):
        yield f"{where}, and back again: another {key}"


def _unlike(before: Mapping[str, object], after: Mapping[str, object], move: Move) -> list[str]:
    """Keys of what differs. Stage 3 keeps no 16-bit weights beside its masters."""
    keys = before.keys() | after.keys()
    if move.settings.stage is not None:
        keys = {key for key in keys if "|param16" not in key} | (before.keys() & after.keys())
    if move.version != INSTALLED:  # older ones cast buffers to the type of the model
        keys = {key for key in keys if not key.endswith("|buffer")}
    return sorted(key for key in keys if before.get(key) != after.get(key))


def _configuration(checkpoint: Checkpoint) -> Mapping[str, Any]:
    return training_of(checkpoint).ds_config or {}


def _is_excluded(name: str, key: str) -> bool:
    """Frozen weights that `exclude_frozen_parameters` kept out of the checkpoint."""
    return "exclude-frozen" in name and "lora" not in key


def main() -> None:
    """Every case at 1, 2, 3 and 4 ranks; exits 1 where something is not equal."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON of the result")
    options = parser.parse_args()
    from .cases import CASES  # imports torch, which only marked tests may

    names = [name for name in judged_cases() if not CASES[name].builds]
    found: dict[str, list[str]] = {}
    for ranks in (1, 2, 3, 4):
        for first in range(0, len(names), LAUNCHED_TOGETHER):
            part = names[first : first + LAUNCHED_TOGETHER]
            with tempfile.TemporaryDirectory() as directory:
                moves = [Move(name) for name in part]
                found.setdefault(str(ranks), []).extend(differences(moves, ranks, Path(directory)))
        print(f"{len(names)} cases at {ranks} ranks: {len(found[str(ranks)])} differences")
    result = {
        "zerotools": __version__,
        "deepspeed": INSTALLED,
        "cases": names,
        "differences": found,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(any(found.values()))


if __name__ == "__main__":
    main()
