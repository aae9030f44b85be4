"""Golden cases, resharded and handed to real DeepSpeed; what it then holds is compared bit for bit.

Needs no torch itself: the ranks that `judge.py` describes run as processes of their own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.golden_files import DEEPSPEED, digests
from zerotools import __version__
from zerotools.core.checkpoint import Checkpoint
from zerotools.formats import read
from zerotools.formats.deepspeed.lay_out import lay_out

from .launch import launch

# Those whose engines are Hugging Face's, or that are universal, pipelines and the like.
OTHER_ENGINES = ("universal", "pipeline", "tensor-parallel", "experts", "z0-", "hf-trainer")
# Elastic state has no hyper-parameters, and is refused with a sentence; Adagrad's checkpoint of
# stage 3 is one that DeepSpeed 0.19.8 itself cannot load again at its own number of ranks.
LEFT_OUT = ("elastic", "z3-fp32-w2-adagrad")
LAUNCHED_TOGETHER = 20


def judged_cases() -> list[str]:
    """Golden cases that real DeepSpeed can judge."""
    return sorted(
        path.parent.name
        for path in DEEPSPEED.glob("*/truth.json")
        if not path.parent.name.startswith(OTHER_ENGINES)
        and not any(word in path.parent.name for word in LEFT_OUT)
    )


def reshard(source: Checkpoint, out: Path, ranks: int) -> Checkpoint:
    """Write `source` for `ranks` ranks, and read it again."""
    return read(write(source, lay_out(source, out, world_size=ranks)))


def differences(
    names: Iterable[str], ranks: int, directory: Path, judge: str = "judge"
) -> list[str]:
    """Reshard golden cases to `ranks`, let DeepSpeed load them in one launch; what is not equal.
    `judge` is the module that the ranks run."""
    cases = list(names)
    for name in cases:
        (directory / name).mkdir()
        reshard(read(DEEPSPEED / name / "checkpoint"), directory / name / "given", ranks)
    launch(f"tests.deepspeed_runs.{judge}", cases, ranks, directory)
    return [found for name in cases for found in _differences(name, ranks, directory / name)]


def _differences(name: str, ranks: int, directory: Path) -> Iterator[str]:
    live = digests(directory / "truth.safetensors")
    for key, expected in digests(DEEPSPEED / name / "truth.safetensors").items():
        if live.get(key) != expected and not _is_excluded(name, key):
            yield f"{name} at {ranks} ranks: the engine has another {key}"
    source, again = read(DEEPSPEED / name / "checkpoint"), read(directory / "again")
    before, after = contents(source), contents(again)
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            yield f"{name} at {ranks} ranks: what DeepSpeed saved again has another {key}"
    back = reshard(again, directory / "back", source.origin.world_size or 1)
    if contents(back) != before:
        yield f"{name} from {ranks} ranks back is not what it was"


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
                found.setdefault(str(ranks), []).extend(differences(part, ranks, Path(directory)))
        print(f"{len(names)} cases at {ranks} ranks: {len(found[str(ranks)])} differences")
    result = {"zerotools": __version__, "deepspeed": "0.19.8", "cases": names, "differences": found}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(any(found.values()))


if __name__ == "__main__":
    main()
