"""What copies a job's checkpoints to a store, killed at each of its requests: what is there then?

    python -m benchmarks.stores.copy_kills

A run has copies of steps 2, 3 and 4. It went back, and came to step 4 again with other weights, and
to step 6; two are to be kept. So what copies sends 6, puts the new 4 in the place of the old one,
and removes 2 and 3. It is started once for each of its requests, and killed (SIGKILL) when it makes
that one: before the store sees it, and after the store has done it. Every copy that readers take
for whole must be a checkpoint of the run, by every byte, and one of them must be there; the next
run must bring the store to where it is without a kill.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.stores.faults import FaultProxy
from harness.stores.gcs import GcsServer, client_env
from harness.stores.trouble import EndHere
from zerotools.core.errors import BadFile
from zerotools.io.output.marker import MARKER
from zerotools.io.stores.addresses import path_of
from zerotools.io.stores.store_path import StorePath
from zerotools.ops.mirroring.far_copies import refuse_part
from zerotools.runs import checkpoint_dirs
from zerotools.runs.manifest import write_manifest
from zerotoolsd.children import mirror

GOLDEN = Path(__file__).parents[2] / "tests/golden/zerotools-0.1.0/step-00000003"
PLACE = "gs://checkpoints/run"


def main() -> int:
    with TemporaryDirectory() as name, GcsServer() as store, FaultProxy(store.url) as proxy:
        os.environ.update(store.env)
        return _Kills(Path(name), store, proxy).run()


class _Kills:
    def __init__(self, work: Path, store: GcsServer, proxy: FaultProxy) -> None:
        self._output, self._store, self._proxy = work / "out", store, proxy
        self._told: Counter[str] = Counter()
        self._known: dict[str, list[dict[str, bytes]]] = {}

    def run(self) -> int:
        self._start("fetch", 3)
        for step in (2, 3, 4):
            self._save(step, 0)
        assert self._start("upload", 3) == 0
        before = dict(self._store.objects[self._store.bucket])
        shutil.rmtree(self._output / checkpoint_dirs.directory_name(2))
        self._save(4, 1)
        self._save(6, 0)
        assert self._start("upload", 2) == 0
        total, wanted = self._proxy.total, self._whole()
        kinds = ", ".join(f"{count} {kind}" for kind, count in self._proxy.counts.items())
        print(f"a run makes {total} requests: {kinds}")
        for number in range(1, total + 1):
            for after in (False, True):
                self._store.objects[self._store.bucket] = dict(before)
                self._one(number, after=after, wanted=wanted)
        for what, count in sorted(self._told.items()):
            print(f"{count:5} {what}")
        print(f"{len(self._store.uploads()):5} unfinished uploads are left in the store")
        return int(any("WRONG" in what for what in self._told))

    def _save(self, step: int, kind: int) -> None:
        path = self._output / checkpoint_dirs.directory_name(step)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(GOLDEN, path)
        tree = json.loads((path / "job.json").read_text())
        (path / "job.json").write_text(json.dumps({**tree, "step": step, "seed": kind}))
        write_manifest(path)
        files = {
            each.relative_to(path).as_posix(): each.read_bytes()
            for each in path.rglob("*")
            if each.is_file()
        }
        self._known.setdefault(path.name, []).append(files)

    def _one(self, number: int, *, after: bool, wanted: dict[str, dict[str, bytes]]) -> None:
        status = self._start("upload", 2, number, after=after)
        whole = self._whole()
        unknown = [name for name, files in whole.items() if files not in self._known[name]]
        if unknown:
            self._told[f"WRONG bytes in {unknown[0]}"] += 1
        newest = max(whole, default=None)
        named = {None: "WRONG: nothing is whole"}.get(newest, f"the newest copy is {newest}")
        self._told[named if status else "ended well: the newest copy is whole"] += 1
        again = self._start("upload", 2)
        equal = again == 0 and self._whole() == wanted
        self._told["... and after the next run all is as it should be" if equal else "WRONG"] += 1

    def _start(
        self, what: str, keep: int, number: int | None = None, *, after: bool = False
    ) -> int:
        self._proxy.reset()
        running: list[subprocess.Popen[bytes]] = []
        if number is not None:
            self._proxy.add(EndHere(lambda: running[0].kill(), after=after), number=number)
        settings = {
            "output_dir": str(self._output),
            "job": "job",
            "upload_to": PLACE,
            "keep_last": keep,
            "keep_every": None,
            "resume_from": None,
        }
        script = [sys.executable, "-E", "-P", str(Path(mirror.__file__))]
        command = [*script, what, json.dumps(settings)]
        environment = {**os.environ, **client_env(self._proxy.url)}
        quiet = subprocess.DEVNULL
        running.append(subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet))
        return running[0].wait()

    def _whole(self) -> dict[str, dict[str, bytes]]:
        """The copies that readers take for whole, with the bytes of their files."""
        place = path_of(PLACE)
        assert isinstance(place, StorePath)
        place.forget()
        found = {}
        for path in checkpoint_dirs.listing(place):
            try:
                checkpoint_dirs.checked(path, digests=False, structure=refuse_part)
            except BadFile:
                continue
            key = f"run/{path.name}/"
            files = {name[len(key) :]: self._store.get(name) for name in self._store.sizes(key)}
            found[path.name] = {n: d for n, d in files.items() if n != MARKER and n[0] != "."}
        return found


if __name__ == "__main__":
    sys.exit(main())
