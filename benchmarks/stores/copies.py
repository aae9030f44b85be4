"""A checkpoint of a job sent to a store and fetched from there, against what moves files alone.

    python -m benchmarks.stores.copies --gib 1 --wait-ms 30

The store is `harness.stores.gcs`, in this process, behind `harness.stores.faults`, which waits so
long before each answer. Ours compares every byte with the SHA-256 of the manifest, writes the
record and the marker, and flushes what it fetches; obstore alone does none of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.measuring import Measurement, measure
from benchmarks.stores.without_a_disk import FETCH
from harness.stores.faults import FaultProxy
from harness.stores.gcs import GcsServer, client_env
from harness.stores.trouble import Wait
from zerotools.runs.checkpoint_dirs import directory_name
from zerotools.runs.manifest import write_manifest
from zerotoolsd import mirroring

SHARDS = 4
GOLDEN = Path(__file__).parents[2] / "tests/golden/zerotools-0.1.0/step-00000003"
SEND = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import obstore
from obstore.store import GCSStore
store = GCSStore("checkpoints", client_options={"allow_http": True})
root = Path(sys.argv[1])
def send(path):
    obstore.put(store, "in/" + path.name, path, chunk_size=2**23)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(send, [path for path in root.rglob("*") if path.is_file()]))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--wait-ms", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    with ExitStack() as stack:
        work = Path(stack.enter_context(TemporaryDirectory()))
        store = stack.enter_context(GcsServer())
        proxy = stack.enter_context(FaultProxy(store.url))
        os.environ.update(client_env(proxy.url))
        job = _checkpoint(work / "job", given.gib)
        proxy.add(Wait(given.wait_ms / 1000))
        print(f"{given.gib:g} GiB in {SHARDS} files, {given.wait_ms:g} ms before each answer")
        print("| what | seconds | CPU | peak memory | requests |\n|---|---|---|---|---|")
        for what in ("send", "send by obstore", "fetch", "fetch by obstore"):
            runs = []
            for number in range(given.runs):
                if what.startswith("send"):
                    store.objects[store.bucket].clear()
                command = _command(what, work, job, number)
                proxy.seen.clear()
                runs.append(measure(command, sampling=True))
            _say(what, runs, proxy.total)
            if what == "send":
                kept = dict(store.objects[store.bucket])
            elif what == "send by obstore":
                store.objects[store.bucket].update(kept)
    return 0


def _command(what: str, work: Path, job: Path, number: int) -> list[str]:
    out = work / f"out-{number}"
    shutil.rmtree(out, ignore_errors=True)
    if what == "send by obstore":
        return [sys.executable, "-c", SEND, str(job)]
    if what == "fetch by obstore":
        return [sys.executable, "-c", FETCH, str(out)]
    settings = {
        "output_dir": str(job if what == "send" else out),
        "job": "job",
        "upload_to": "gs://checkpoints/run",
        "keep_last": None,
        "keep_every": None,
        "resume_from": None,
    }
    script = [sys.executable, "-E", "-P", str(Path(mirroring.__file__))]
    if what == "send":  # the place is claimed before, as when a job begins
        shutil.rmtree(job / ".uploads", ignore_errors=True)
        measure([*script, "fetch", json.dumps(settings)])
    return [*script, "upload" if what == "send" else "fetch", json.dumps(settings)]


def _say(what: str, runs: list[Measurement], requests: int) -> None:
    seconds = median(each.wall_seconds for each in runs)
    cpu = median(each.cpu_seconds for each in runs)
    peak = max(each.peak_anonymous_bytes for each in runs) / 2**20
    print(f"| {what} | {seconds:.2f} | {cpu:.2f} | {peak:.0f} MiB | {requests} |", flush=True)


def _checkpoint(output_dir: Path, gib: float) -> Path:
    """The output directory of a job with one checkpoint of so many GiB."""
    path = output_dir / directory_name(3)
    shutil.copytree(GOLDEN, path)
    draw = np.random.default_rng(0)
    for shard in range(SHARDS):
        data = draw.integers(0, 256, int(gib * 2**30 / SHARDS), np.uint8)
        (path / "dcp" / f"__{shard + 2}_0.distcp").write_bytes(data.tobytes())
    write_manifest(path)
    return output_dir


if __name__ == "__main__":
    sys.exit(main())
