"""A checkpoint of a job sent to a store and fetched from there, against what moves files alone.

    python -m benchmarks.stores.copies --gib 1 --wait-ms 30

The store is `harness.stores.gcs`, in this process, behind `harness.stores.faults`, which waits so
long before each answer. Ours compares every byte with the SHA-256 of the manifest, writes the
record and the marker, and flushes what it fetches; obstore alone does none of it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

from benchmarks.measuring import measure
from benchmarks.stores.slow_store import asked, heading, row, slow_store
from benchmarks.stores.without_a_disk import FETCH
from zerotools.runs.checkpoint_dirs import directory_name
from zerotools.runs.manifest import write_manifest
from zerotoolsd.children import mirror

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
    given = asked(__doc__)
    with slow_store(given) as (work, store, proxy):
        job = _checkpoint(work / "job", given.gib)
        heading(f"{given.gib:g} GiB in {SHARDS} files", given)
        for what in ("send", "send by obstore", "fetch", "fetch by obstore"):
            runs = []
            for number in range(given.runs):
                if what.startswith("send"):
                    store.objects[store.bucket].clear()
                command = _command(what, work, job, number)
                proxy.seen.clear()
                runs.append([measure(command, sampling=True)])
            row(what, runs, proxy.total)
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
    script = [sys.executable, "-E", "-P", str(Path(mirror.__file__))]
    if what == "send":  # the place is claimed before, as when a job begins
        shutil.rmtree(job / ".uploads", ignore_errors=True)
        measure([*script, "fetch", json.dumps(settings)])
    return [*script, "upload" if what == "send" else "fetch", json.dumps(settings)]


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
