"""Every golden checkpoint, read from a store and written to it: is it what the local run makes?

    python -m benchmarks.stores.every_format s3 gs az hf http

Each checkpoint of tests/golden is put on the server. `inspect` must say the same of it as of the
files, and `consolidate`, `reshard` and `convert` to every format that is written must make the
same bytes in the store, each with --verify, as they make on the disk. To `hf` and `http`, which are
only read, the output goes to a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.stores import azure, gcs, s3
from harness.stores.hub import HubServer
from harness.stores.hub_repos import HubRepo
from harness.stores.static import StaticServer
from zerotools import formats
from zerotools.core.errors import ZerotoolsError
from zerotools.io.files.open_source import RemotePath
from zerotools.io.output.output_marker import MARKER
from zerotools.io.stores.parse_url import path_of
from zerotools.io.stores.store_path import remove_objects
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.conversion import Conversion, Unchanged, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.inspect import inspect, to_json
from zerotools.ops.write_output import write_output

GOLDEN = Path(__file__).parents[2] / "tests/golden"
RANKED = frozenset(("deepspeed", "dcp"))
SERVERS = {"s3": s3.S3Server, "gs": gcs.GcsServer, "az": azure.AzureServer}
Prepare = Callable[[Path, Path], Conversion | Unchanged]


def _conversions() -> Iterator[tuple[str, Prepare]]:
    yield "consolidate", lambda a, b: consolidate.prepare_export(a, b, consolidate.Options())
    yield "reshard", lambda a, b: reshard.prepare_reshard(a, b, world_size=3)
    for to in convert.written_formats():
        yield f"convert --to {to}", partial(_converted, to)


def _converted(to: str, source: Path, out: Path) -> Conversion | Unchanged:
    return convert.prepare_convert(source, out, to, {"world_size": 2} if to in RANKED else {})


def _cases() -> list[Path]:
    whole = [each for each in GOLDEN.glob("*/*") if (each / "checkpoint").is_dir()]
    rest = [each for each in GOLDEN.glob("*/*") if each.is_dir() and each not in whole]
    found = [each / "checkpoint" for each in whole] + rest
    return sorted(each for each in found if "datasets" not in each.parts[-2])


def _shown(path: Path) -> str:
    try:
        return json.dumps(to_json(inspect(formats.read_any(path)), chunks=True), default=str)
    except ZerotoolsError as error:
        return f"{type(error).__name__}: {error}"


def _made(prepare: Prepare, source: Path, out: Path) -> str:
    try:
        conversion = prepare(source, out)
        if isinstance(conversion, Unchanged):
            return "unchanged"
        done = write_output if isinstance(out, RemotePath) else perform_conversion
        done(conversion, budget=MemoryBudget(2**28), overwrite=False, verify=True)
        return "written"
    except ZerotoolsError as error:
        return f"{type(error).__name__}: {error}"


def _files(out: Path) -> dict[str, bytes]:
    """All bytes of an output but its marker, which has times in it."""
    if isinstance(out, RemotePath):
        out.forget()
        paths: list[Path] = list(out.below()) if out.is_dir() else []
        found = {}
        for path in paths:
            assert isinstance(path, RemotePath)
            found[path.relative_to(out).as_posix()] = path.open_source().read(2**40, 0)
    else:
        every = out.rglob("*") if out.exists() else iter(())
        found = {p.relative_to(out).as_posix(): p.read_bytes() for p in every if p.is_file()}
    return {name: data for name, data in found.items() if name != MARKER}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="+", choices=[*SERVERS, "hf", "http"])
    parser.add_argument("--every", type=int, default=1, help="take every n-th checkpoint")
    given = parser.parse_args()
    return max(_compare(name, _cases()[:: given.every]) for name in given.stores)


def _compare(name: str, cases: list[Path]) -> int:
    began, told = time.monotonic(), Counter[str]()
    with ExitStack() as stack:
        work = Path(stack.enter_context(TemporaryDirectory()))
        if name == "http":  # an index is needed: what zerotools has written has one
            outputs = Path(stack.enter_context(TemporaryDirectory()))
            cases = list(_outputs(cases, outputs))
        place_of = _served(name, cases, stack)
        for number, case in enumerate(cases):
            far = place_of(case)
            near_words, far_words = _shown(case), _shown(far)
            far_words = far_words.replace(str(far), str(case)).replace(
                str(far.parent), str(case.parent)
            )
            told["inspect " + ("equal" if near_words == far_words else "DIFFERENT")] += 1
            if near_words != far_words:
                print(name, case, "inspect", near_words[:300], far_words[:300], sep="\n  ")
            for verb, prepare in _conversions():
                near_out = work / "out"
                far_out = work / "far" / "out"
                if name in SERVERS:
                    far_out = path_of(f"{name}://checkpoints/out/{number}/{verb}/out")
                near_said = _made(prepare, case, near_out)
                far_said = _made(prepare, far, far_out)
                for a, b in ((far_out, near_out), (far, case), (far.parent, case.parent)):
                    far_said = far_said.replace(str(a), str(b))
                equal = near_said == far_said and _files(near_out) == _files(far_out)
                kind = near_said if near_said in ("written", "unchanged") else "refused alike"
                told[f"{verb}: {kind}" if equal else f"{verb}: DIFFERENT"] += 1
                if not equal:
                    print(name, case, verb, near_said[:300], far_said[:300], sep="\n  ")
                shutil.rmtree(work)
                work.mkdir()
                if isinstance(far_out, RemotePath):  # moto keeps a file open for each object
                    far_out.forget()
                    if far_out.parent.is_dir():
                        remove_objects(list(far_out.parent.glob("**/*")))
    print(f"{name}: {len(cases)} checkpoints, {time.monotonic() - began:.0f} s")
    for what, count in sorted(told.items()):
        print(f"    {count:5} {what}")
    return int(any("DIFFERENT" in what for what in told))


def _outputs(cases: list[Path], into: Path) -> Iterator[Path]:
    """What the conversions make of some of the checkpoints."""
    for number, case in enumerate(cases):
        for verb, prepare in _conversions():
            out = into / f"{number}-{verb.rpartition(' ')[2]}"
            if _made(prepare, case, out) == "written":
                yield out


def _served(name: str, cases: list[Path], stack: ExitStack) -> Callable[[Path], RemotePath]:
    """Start a server with all of them; returns where each of them lies."""
    files = {case: [each for each in case.rglob("*") if each.is_file()] for case in cases}

    def at(text: str) -> RemotePath:
        found = path_of(text)
        assert isinstance(found, RemotePath)
        return found

    if name == "http":
        server = stack.enter_context(StaticServer(cases[0].parent))
        return lambda case: at(f"{server.url}/{case.name}")
    if name == "hf":
        hub = stack.enter_context(HubServer())
        os.environ.update(hub.env)
        repos = {}
        for number, case in enumerate(cases):
            repos[case] = f"team/model-{number}"
            repo = hub.add(HubRepo(repos[case]))
            beside = [each for each in case.parent.glob("*") if each.is_file()]
            every = [*files[case], *beside]
            repo.commit({p.relative_to(case.parent).as_posix(): p.read_bytes() for p in every})
        return lambda case: at(f"hf://{repos[case]}/{case.name}")
    store = stack.enter_context(SERVERS[name]())
    os.environ.update(store.env)
    for each in {each for case in cases for each in [*files[case], *case.parent.glob("*")]}:
        if each.is_file():
            store.put(f"golden/{each.relative_to(GOLDEN).as_posix()}", each.read_bytes())
    return lambda case: at(f"{name}://checkpoints/golden/{case.relative_to(GOLDEN)}")


if __name__ == "__main__":
    sys.exit(main())
