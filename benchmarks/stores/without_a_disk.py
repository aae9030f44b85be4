"""`consolidate` of a checkpoint in a store, against fetching it first.

    python -m benchmarks.stores.without_a_disk --gib 1 --wait-ms 30

The store is `harness.stores.gcs`, in this process, behind `harness.stores.faults`, which waits so
long before each answer. Bytes are what a network of no limit gives, as far as the two cores that
all of it shares let them.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from benchmarks.measuring import Measurement, measure
from benchmarks.stores.slow_store import asked, heading, row, slow_store

SHARDS, SIDE = 4, 2048
FETCH = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import obstore
from obstore.store import GCSStore
store = GCSStore("checkpoints", client_options={"allow_http": True})
out = Path(sys.argv[1])
out.mkdir()
def fetch(meta):
    with (out / meta["path"].rpartition("/")[2]).open("wb") as file:
        for data in obstore.get(store, meta["path"]).stream():
            file.write(data)
with ThreadPoolExecutor(8) as pool:
    list(pool.map(fetch, obstore.list(store, "in/").collect()))
"""
SEND = """
import sys
from pathlib import Path
import obstore
from obstore.store import GCSStore
store = GCSStore("checkpoints", client_options={"allow_http": True})
for path in sorted(Path(sys.argv[1]).iterdir()):
    obstore.put(store, "sent/" + path.name, path, chunk_size=2**23)
"""


def main() -> int:
    given = asked(__doc__)
    with slow_store(given) as (work, store, proxy):
        for path in _model(work / "model", given.gib):
            store.put(f"in/{path.name}", path.read_bytes())
        shutil.rmtree(work / "model")
        heading(f"{given.gib:g} GiB of fp32 in {SHARDS} files", given)
        for what in ("inspect", "to a disk", "fetch, to a disk", "to the store", "all by a disk"):
            runs = []
            for number in range(given.runs):
                proxy.seen.clear()
                runs.append(_run(what, work, number))
            row(what, runs, proxy.total)
    return 0


def _run(what: str, work: Path, number: int) -> list[Measurement]:
    here, there, fetched = "gs://checkpoints", work / "out", work / "fetched"
    zerotools = str(Path(sys.executable).with_name("zerotools"))
    for path in (there, fetched):
        shutil.rmtree(path, ignore_errors=True)
    take = [zerotools, "consolidate", "--dtype", "bf16"]
    fetch = [sys.executable, "-c", FETCH, str(fetched)]
    commands = {
        "inspect": [[zerotools, "inspect", f"{here}/in"]],
        "to a disk": [[*take, f"{here}/in", str(there)]],
        "fetch, to a disk": [fetch, [*take, str(fetched), str(there)]],
        "to the store": [[*take, f"{here}/in", f"{here}/out-{number}"]],
        "all by a disk": [
            fetch,
            [*take, str(fetched), str(there)],
            [sys.executable, "-c", SEND, str(there)],
        ],
    }
    return [measure(command, sampling=True) for command in commands[what]]


def _model(directory: Path, gib: float) -> Iterator[Path]:
    """A model of so many GiB in shards, with its index."""
    directory.mkdir()
    draw, places = np.random.default_rng(0), {}
    count = max(1, int(gib * 2**30 / SHARDS / SIDE**2 / 4))
    for shard in range(1, SHARDS + 1):
        name = f"model-{shard:05}-of-{SHARDS:05}.safetensors"
        tensors = {
            f"{shard}.{n}": draw.standard_normal((SIDE, SIDE), np.float32) for n in range(count)
        }
        save_file(tensors, directory / name)
        places |= dict.fromkeys(tensors, name)
        yield directory / name
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    yield index


if __name__ == "__main__":
    sys.exit(main())
