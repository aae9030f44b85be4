"""A run that writes to a store, killed at each of its requests: what is there then?

    python -m benchmarks.stores.kills

One golden checkpoint is resharded from S3 to S3 behind a proxy, which counts the requests. Then the
same run is started once for each of them, and killed (SIGKILL) when it makes that request: before
the store sees it, and after the store has done it. The output must be whole, by every byte, or be
refused by readers; and the same command with --resume must make it whole.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from harness.stores.faults import FaultProxy
from harness.stores.s3 import S3Server, client_env
from harness.stores.trouble import EndHere
from zerotools import formats
from zerotools.core.errors import ZerotoolsError
from zerotools.io.files.open_source import RemotePath
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.store_write_record import WRITING
from zerotools.io.stores.parse_url import path_of

SOURCE = Path(__file__).parents[2] / "tests/golden/deepspeed-0.19.8/z2-bf16-w2/checkpoint"
SOURCE_URL = "s3://checkpoints/in/checkpoint"


def main() -> int:
    with S3Server() as store, FaultProxy(store.url) as proxy:
        os.environ.update(store.env)
        for each in SOURCE.rglob("*"):
            if each.is_file():
                store.put(f"in/checkpoint/{each.relative_to(SOURCE).as_posix()}", each.read_bytes())
        kills = _Kills(store, proxy)
        return kills.run()


class _Kills:
    def __init__(self, store: S3Server, proxy: FaultProxy) -> None:
        self._store, self._proxy = store, proxy
        self._told: Counter[str] = Counter()

    def run(self) -> int:
        assert self._start("whole") == 0
        total, whole = self._proxy.total, self._objects("whole")
        kinds = ", ".join(f"{count} {kind}" for kind, count in self._proxy.counts.items())
        print(f"a run makes {total} requests: {kinds}")
        for number in range(1, total + 1):
            for after in (False, True):
                self._one(f"out-{number}-{after}", number, after=after, whole=whole)
        for what, count in sorted(self._told.items()):
            print(f"{count:5} {what}")
        print(f"{len(self._store.uploads()):5} unfinished uploads are left in the store")
        return int(any("WRONG" in what for what in self._told))

    def _one(self, out: str, number: int, *, after: bool, whole: dict[str, bytes]) -> None:
        status = self._start(out, number, after=after)
        state = self._state(out)
        if state == "whole":
            equal = self._objects(out) == whole
            self._told["killed: the output is whole" if equal else "WRONG bytes"] += 1
            return
        self._told[f"killed: {state}" if status else "WRONG: ended well, and no output"] += 1
        resumed = self._start(out, resume=True)
        equal = resumed == 0 and self._objects(out) == whole
        self._told["... and resumed, whole" if equal else "WRONG after --resume"] += 1

    def _start(
        self, out: str, number: int | None = None, *, after: bool = False, resume: bool = False
    ) -> int:
        self._proxy.reset()
        running: list[subprocess.Popen[bytes]] = []
        if number is not None:
            self._proxy.add(EndHere(lambda: running[0].kill(), after=after), number=number)
        program = Path(sys.executable).with_name("zerotools")
        command = [str(program), "reshard", SOURCE_URL, f"s3://checkpoints/{out}"]
        command += ["--world-size", "3", *(["--resume"] if resume else [])]
        environment = {**os.environ, **client_env(self._proxy.url)}
        quiet = subprocess.DEVNULL
        running.append(subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet))
        return running[0].wait()

    def _state(self, out: str) -> str:
        path = path_of(f"s3://checkpoints/{out}")
        assert isinstance(path, RemotePath)
        path.forget()
        try:
            formats.read_any(path)
        except ZerotoolsError as error:
            return str(error).replace(str(path), "it").partition(":")[0]
        return "whole"

    def _objects(self, out: str) -> dict[str, bytes]:
        names = self._store.sizes(f"{out}/")
        found = {name[len(out) + 1 :]: self._store.get(name) for name in names}
        return {name: data for name, data in found.items() if name not in (MARKER, WRITING)}


if __name__ == "__main__":
    sys.exit(main())
