"""What `libraries` has each library do, in an environment that has that library alone.

    library_calls.py LIBRARY CALL URL RUNS

prints the wall and processor seconds of each run, and the peak resident bytes of the process, as
JSON. The first run, which makes connections, is not among them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BUCKET, MANY, BIG, PUT = "checkpoints", "many", "big", "put"
OBJECTS, RANGES = 2000, 64
RANGE_BYTES, BIG_BYTES, PART_BYTES = 1 << 20, 256 << 20, 16 << 20
STARTS = [number * (BIG_BYTES // RANGES) for number in range(RANGES)]
ENDS = [start + RANGE_BYTES for start in STARTS]
Calls = dict[str, Callable[[], int]]


def of_obstore(url: str, data: bytes) -> Calls:
    import obstore
    from obstore.store import HTTPStore, S3Store

    plain = HTTPStore(url, client_options={"allow_http": True})
    store: Any = S3Store(
        BUCKET,
        endpoint=url,
        access_key_id="key",
        secret_access_key="secret",
        region="us-east-1",
        client_options={"allow_http": True},
    )

    def ranges(of: Any) -> int:
        found = obstore.get_ranges(of, BIG, starts=STARTS, ends=ENDS, coalesce=0)
        return sum(len(each) for each in found)

    def put() -> int:
        obstore.put(store, PUT, data, chunk_size=PART_BYTES, max_concurrency=8)
        return BIG_BYTES

    return {
        "list": lambda: sum(len(page) for page in obstore.list(store, MANY)),
        "ranges": lambda: ranges(store),
        "get": lambda: len(obstore.get(store, BIG).bytes()),
        "put": put,
        "http ranges": lambda: ranges(plain),
        "http get": lambda: len(obstore.get(plain, BIG).bytes()),
    }


def of_fsspec(url: str, data: bytes) -> Calls:
    import fsspec

    plain = fsspec.filesystem("http", skip_instance_cache=True)
    store = fsspec.filesystem(
        "s3",
        key="key",
        secret="secret",
        endpoint_url=url,
        client_kwargs={"region_name": "us-east-1"},
        max_concurrency=8,
        use_listings_cache=False,
    )

    def ranges(of: Any, path: str) -> int:
        return sum(len(each) for each in of.cat_ranges([path] * RANGES, STARTS, ENDS))

    def put() -> int:
        store.pipe_file(f"{BUCKET}/{PUT}", data, chunksize=PART_BYTES)
        return BIG_BYTES

    return {
        "list": lambda: len(store.find(f"{BUCKET}/{MANY}")),
        "ranges": lambda: ranges(store, f"{BUCKET}/{BIG}"),
        "get": lambda: len(store.cat_file(f"{BUCKET}/{BIG}")),
        "put": put,
        "http ranges": lambda: ranges(plain, f"{url}/{BIG}"),
        "http get": lambda: len(plain.cat_file(f"{url}/{BIG}")),
    }


EXPECTED = {"list": OBJECTS, "ranges": RANGES * RANGE_BYTES, "get": BIG_BYTES, "put": BIG_BYTES}


def main() -> None:
    library, call, url, runs = sys.argv[1:]
    data = b"x" * BIG_BYTES if call == "put" else b""
    once = {"obstore": of_obstore, "s3fs": of_fsspec}[library](url, data)[call]
    wall, cpu = [], []
    for _ in range(int(runs) + 1):
        began, spent = time.perf_counter(), time.process_time()
        found = once()
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - spent)
        assert found == EXPECTED[call.removeprefix("http ")], found
    status = Path("/proc/self/status").read_text()  # ru_maxrss would have our parent's, too
    peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    print(json.dumps({"wall": wall[1:], "cpu": cpu[1:], "peak": peak}))


if __name__ == "__main__":
    main()
