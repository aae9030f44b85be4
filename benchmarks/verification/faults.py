"""Damage of every sort to six kinds of checkpoint, and who finds it.

    python -m benchmarks.verification.faults [--flips 1000] [--peer-flips 100] [--kinds zero3,dcp]

Tiny checkpoints of two steps of one real run of DeepSpeed, as they are and in other formats. Every
damage is done to a copy, `verify` is asked with and without a manifest, and the copy is mended. A
damage that `verify` does not find counts as missed, unless tensors and state are read as before, or
`verify` says that bytes cannot be checked, and does not call it whole. Needs torch, DeepSpeed and
transformers: what their own loaders say of the same files is beside it.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path

from benchmarks.measuring import machine
from benchmarks.verification.kinds import KINDS, Kind, make
from benchmarks.verification.peers import said_by_peer
from zerotools import formats
from zerotools.core.errors import ZerotoolsError
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.verification.against import Against
from zerotools.ops.verification.digests import digests_of
from zerotools.ops.verification.manifests.digest_manifest import digested
from zerotools.ops.verification.verify import prepare, verify

BUDGET = MemoryBudget(max_memory=2**20, workers=1)
PAGE = 512
"""The files are tiny: a page of theirs is an eighth of a real one."""
FEW = 8
FOUND, SAME, NAMED, MISSED = "found", "harmless", "not called whole", "MISSED"
Damage = Callable[[], None]


@dataclass
class Tally:
    """Outcomes by sort of damage: without a manifest, with one, and of the format's own loader."""

    alone: dict[str, Counter[str]] = field(default_factory=dict)
    with_manifest: dict[str, Counter[str]] = field(default_factory=dict)
    peer: dict[str, Counter[str]] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def add(self, sort: str, alone: str, known: str, peer: str | None) -> None:
        self.alone.setdefault(sort, Counter())[alone] += 1
        self.with_manifest.setdefault(sort, Counter())[known] += 1
        if peer is not None:
            self.peer.setdefault(sort, Counter())[peer] += 1


def reading(path: Path) -> object:
    """All that a checkpoint says: tensors and state. None where it cannot be read."""
    try:
        checkpoint = formats.read(path)
        training = formats.training_of(checkpoint)
        tensors = digests_of(checkpoint, digested(checkpoint, training), BUDGET)
    except (ZerotoolsError, OSError):
        return None
    return tensors, dict(checkpoint.aliases), re.sub(r" at 0x[0-9a-f]+", "", repr(training))


def outcome(path: Path, other: Against | None, before: object) -> str:
    """What `verify` makes of a damaged checkpoint."""
    try:
        found = verify(prepare(path), other=other, budget=BUDGET)
    except (ZerotoolsError, OSError):
        return FOUND
    if found.findings:
        return FOUND
    if reading(path) == before:
        return SAME
    return MISSED if found.is_whole else NAMED


@contextmanager
def restored(files: list[Path]) -> Iterator[None]:
    """Files have their bytes again when the context ends."""
    kept = {file: file.read_bytes() for file in files}
    try:
        yield
    finally:
        for file, data in kept.items():
            file.write_bytes(data)


def flips(files: list[Path], count: int, chance: random.Random) -> Iterator[tuple[Path, Damage]]:
    """One bit each, over all bytes of all files alike."""
    sizes = [file.stat().st_size for file in files]
    for file in chance.choices(files, sizes, k=count):
        at, mask = chance.randrange(file.stat().st_size), 1 << chance.randrange(8)

        def flip(file: Path = file, at: int = at, mask: int = mask) -> None:
            data = bytearray(file.read_bytes())
            data[at] ^= mask
            file.write_bytes(data)

        yield file, flip


def cuts(files: list[Path]) -> Iterator[tuple[Path, Damage]]:
    for file in files:
        size = file.stat().st_size
        for length in sorted({0, 1, size // 3, size // 2, max(0, size - PAGE), size - 1}):
            yield (
                file,
                lambda file=file, length=length: file.write_bytes(file.read_bytes()[:length]),
            )


def zeroed(files: list[Path]) -> Iterator[tuple[Path, Damage]]:
    """Pages that were not written: those that are zero already are left out."""
    for file in files:
        data = file.read_bytes()
        for at in range(0, len(data), PAGE):
            if data[at : at + PAGE].strip(b"\0"):
                blank = data[:at] + bytes(len(data[at : at + PAGE])) + data[at + PAGE :]
                yield file, lambda file=file, blank=blank: file.write_bytes(blank)


def deleted(files: list[Path]) -> Iterator[tuple[Path, Damage]]:
    for file in files:
        yield file, file.unlink


def exchanged(files: list[Path]) -> Iterator[tuple[Path, Damage]]:
    """Shards swapped, and one in the place of another: all pairs of a few, neighbours of many."""
    for one, other in combinations(files, 2) if len(files) <= FEW else pairwise(files):
        ours, theirs = one.read_bytes(), other.read_bytes()
        if one.suffix != other.suffix or ours == theirs:
            continue

        def swap(a: Path = one, b: Path = other, x: bytes = ours, y: bytes = theirs) -> None:
            a.write_bytes(y)
            b.write_bytes(x)

        yield one, swap
        yield one, lambda one=one, theirs=theirs: one.write_bytes(theirs)


def torn(files: list[Path], base: Path, older: Path) -> Iterator[tuple[Path, Damage]]:
    """Some files of an older step: each alone, and all but each."""
    pairs = [(file, (older / file.relative_to(base)).read_bytes()) for file in files]
    pairs = [(file, data) for file, data in pairs if data != file.read_bytes()]
    for index, (file, data) in enumerate(pairs):
        yield file, lambda file=file, data=data: file.write_bytes(data)
        rest = [pair for number, pair in enumerate(pairs) if number != index]

        def mix(rest: list[tuple[Path, bytes]] = rest) -> None:
            for other, stale in rest:
                other.write_bytes(stale)

        if len(rest) > 1:
            yield file, mix


def tally(kind: Kind, path: Path, older: Path, flip_count: int, peer_flips: int) -> Tally:
    """Do every damage to `path`, one after another."""
    given = prepare(path)
    files = [given.files.base / name for name in given.files.names]
    sound = verify(given, digests=True, budget=BUDGET)
    if sound.manifest is None:
        raise RuntimeError(f"{path} is not sound: {sound.findings}")
    other = Against(sound.manifest, Path("manifest"))
    before, peer_before = reading(path), said_by_peer(kind.name, path)
    chance, counts = random.Random(kind.name), Tally()
    sorts = {
        "bit flips": list(flips(files, flip_count, chance)),
        "truncations": list(cuts(files)),
        "zeroed pages": list(zeroed(files)),
        "deleted files": list(deleted(files)),
        "swapped and duplicated": list(exchanged(files)),
        "torn mixes of two steps": list(torn(files, path, older)),
    }
    for sort, damages in sorts.items():
        for number, (file, damage) in enumerate(damages):
            with restored(files):
                damage()
                alone = outcome(path, None, before)
                known = outcome(path, other, before)
                is_asked = sort != "bit flips" or number < peer_flips
                peer = judged(kind.name, path, peer_before) if is_asked else None
            counts.add(sort, alone, known, peer)
            if MISSED in (alone, known):
                counts.missed.append(f"{kind.name}, {sort} {number}: {file.name}")
    return counts


def judged(kind: str, path: Path, before: object) -> str:
    """What the format's own loader makes of it."""
    now = said_by_peer(kind, path)
    if now is None:
        return "refuses"
    return "the same" if now == before else "OTHER VALUES"


def show(name: str, kind: Kind, counts: Tally) -> None:
    print(f"\n### {name}\nThe loader beside it is {kind.peer}.\n")
    print(
        "| damage | done | found | harmless | not called whole | MISSED | "
        "with a manifest: found | harmless | MISSED | the loader refuses | gives the same | "
        "gives OTHER VALUES |\n|---" + "|---" * 11 + "|"
    )
    for sort, alone in counts.alone.items():
        known, peer = counts.with_manifest[sort], counts.peer.get(sort, Counter())
        cells = [sort, alone.total(), *(alone[each] for each in (FOUND, SAME, NAMED, MISSED))]
        cells += [known[FOUND], known[SAME], known[MISSED] + known[NAMED]]
        cells += [peer[each] for each in ("refuses", "the same", "OTHER VALUES")]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--peer-flips", type=int, default=100)
    parser.add_argument("--kinds", default=",".join(KINDS))
    asked = parser.parse_args()
    print(f"{machine()}; {asked.flips} flips each, {asked.peer_flips} of them shown to the loaders")
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in asked.kinds.split(","):
            older, newer = (make(name, step, Path(temporary)) for step in (1, 3))
            counts = tally(KINDS[name], newer, older, asked.flips, asked.peer_flips)
            show(name, KINDS[name], counts)
            missed += counts.missed
            shutil.rmtree(older)
            shutil.rmtree(newer)
    print(f"\nmissed: {len(missed)}")
    print("\n".join(missed[:50]))


if __name__ == "__main__":
    main()
