"""Damage of every sort to six kinds of checkpoint, and what `salvage` makes of it.

    python -m benchmarks.verification.salvaging [--flips 200] [--kinds zero3,dcp]

The checkpoints and the damage of `faults`. What is exported is compared, bit by bit, with an export
of the sound checkpoint: alone, and with the sound checkpoint to fill from. A weight with other
values counts as wrong, unless salvage says of its file that the bytes cannot be checked. Needs
torch.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from safetensors.numpy import load_file

from benchmarks.measuring import machine
from benchmarks.verification.faults import (
    BUDGET,
    Damage,
    cuts,
    deleted,
    flips,
    restored,
    zeroed,
)
from benchmarks.verification.kinds import KINDS, make
from zerotools.core.errors import ZerotoolsError
from zerotools.ops.conversions.conversion import perform
from zerotools.ops.salvage.examine import prepare
from zerotools.ops.salvage.preparation import prepare_salvage
from zerotools.ops.salvage.salvage_plan import Salvage, SalvageOptions

ALL, SOME, REFUSED = "every weight, right", "the others named, the rest right", "refused"
UNCHECKED, WRONG = "other values, said to be unchecked", "WRONG"
OUTCOMES = (ALL, SOME, REFUSED, UNCHECKED, WRONG)
Weights = dict[str, tuple[str, tuple[int, ...], bytes]]


def salvaged(path: Path, out: Path, fill_from: Path | None) -> tuple[Salvage, Weights]:
    """What is found, and the bytes of every weight that is written."""
    given = prepare(path, stand_in=fill_from)
    options = SalvageOptions()
    found = prepare_salvage(given, out, options, fill_from=fill_from, budget=BUDGET)
    if found.conversion is None:
        return found, {}
    perform(found.conversion, budget=BUDGET, overwrite=True)
    weights: Weights = {}
    for file in sorted(out.glob("*.safetensors")):
        for name, array in load_file(file).items():
            weights[name] = (array.dtype.name, array.shape, array.tobytes())
    return found, weights


def outcome(path: Path, out: Path, fill_from: Path | None, wanted: Weights) -> str:
    """What salvage makes of a damaged checkpoint, of which an undamaged export is `wanted`."""
    try:
        found, weights = salvaged(path, out, fill_from)
    except (ZerotoolsError, OSError):
        return REFUSED
    if any(wanted.get(name) != value for name, value in weights.items()):
        return UNCHECKED if found.examined.unchecked else WRONG
    if weights.keys() == wanted.keys():
        return ALL
    return WRONG if found.is_complete else SOME


def damages(files: list[Path], count: int, chance: random.Random) -> Iterator[tuple[str, Damage]]:
    yield from (("bit flips", each) for _, each in flips(files, count, chance))
    yield from (("truncations", each) for _, each in cuts(files))
    yield from (("zeroed pages", each) for _, each in zeroed(files))
    yield from (("deleted files", each) for _, each in deleted(files))


def table(title: str, counts: dict[str, Counter[str]]) -> Iterator[str]:
    yield f"| {title} | done | {' | '.join(OUTCOMES)} |"
    yield "|---" * (len(OUTCOMES) + 2) + "|"
    for sort, found in counts.items():
        numbers = " | ".join(str(found[each]) for each in OUTCOMES)
        yield f"| {sort} | {found.total()} | {numbers} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--kinds", default=",".join(KINDS))
    given = parser.parse_args()
    print(machine())
    for name in given.kinds.split(","):
        with tempfile.TemporaryDirectory() as directory:
            work = Path(directory)
            (work / "sound").mkdir()
            path, sound = make(name, 3, work), make(name, 3, work / "sound")
            _, wanted = salvaged(sound, work / "wanted", None)
            files = sorted(each for each in path.rglob("*") if each.is_file())
            alone: dict[str, Counter[str]] = {}
            filled: dict[str, Counter[str]] = {}
            for sort, damage in damages(files, given.flips, random.Random(name)):
                with restored(files):
                    damage()
                    for counts, other in ((alone, None), (filled, sound)):
                        found = outcome(path, work / "out", other, wanted)
                        counts.setdefault(sort, Counter())[found] += 1
        print(f"\n### {name}")
        print("\n".join(table("alone", alone)))
        print()
        print("\n".join(table("filled from the sound one", filled)), flush=True)


if __name__ == "__main__":
    main()
