"""Fuzzing one target with atheris: `python -m tests.fuzzing.run TARGET --seconds N --work DIR`.

The seconds are of the processor, so that a machine with other work gives the same. Inputs that
reach new branches are kept in `DIR/corpus/TARGET`, findings in `DIR/findings/TARGET`: the first
input for each place in the code at which something is wrong. The fuzzer goes on after each; only
one that takes too much time or memory ends it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path

SLOWEST_SECONDS = 60
LONGEST_FACTOR = 10
"""How many times the seconds of the processor it may take by the clock."""
MOST_MEGABYTES = 200
"""What one input may take beside what the libraries do."""
LONGEST_INPUT = 16384
MOST_FINDINGS = 100


def main() -> None:
    """Fuzz, and exit as libFuzzer does."""
    options = _options()
    os.environ["ZEROTOOLS_FUZZ_PEERS"] = "1"
    import atheris

    from tests.fuzzing.targets import CORPUS, ELSEWHERE, PACKAGES, check_of

    with atheris.instrument_imports(
        include=["zerotools", "zerotoolsd", *PACKAGES.get(options.target, ())],
        exclude=[*ELSEWHERE.get(options.target, ())],
    ):
        check = check_of(options.target)
        for seed in sorted((CORPUS / options.target).iterdir()):
            check(seed.read_bytes())  # now everything is imported
    corpus = options.work / "corpus" / options.target
    findings = options.work / "findings" / options.target
    for directory in (corpus, findings):
        directory.mkdir(parents=True, exist_ok=True)
    known: set[tuple[str, ...]] = set()
    over = time.process_time() + options.seconds

    def kept(data: bytes) -> None:
        if time.process_time() > over:
            os.kill(os.getpid(), signal.SIGUSR1)  # libFuzzer says what it did, and ends
        try:
            check(data)
        except Exception as error:  # whatever it is, it is a finding
            _keep(findings, data, error, known)

    arguments = [
        sys.argv[0],
        f"-max_total_time={LONGEST_FACTOR * options.seconds}",
        f"-timeout={SLOWEST_SECONDS}",
        f"-rss_limit_mb={_resident_megabytes() + MOST_MEGABYTES}",
        f"-max_len={LONGEST_INPUT}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
        str(corpus),
        str(CORPUS / options.target),
    ]
    atheris.Setup(arguments, kept)
    atheris.Fuzz()


def _keep(findings: Path, data: bytes, error: Exception, known: set[tuple[str, ...]]) -> None:
    """Write down an input, unless another was found to go wrong at the same place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).stem}-{place.lineno}"
    key = (type(error).__name__, where, str(error)[:60] if place.name == "compare" else "")
    if key in known or len(known) == MOST_FINDINGS:
        return
    known.add(key)
    name = f"{type(error).__name__}-{where}-{hashlib.sha256(data).hexdigest()[:8]}"
    (findings / name).write_bytes(data)
    (findings / f"{name}.txt").write_text("".join(traceback.format_exception(error)))
    print(f"FOUND {name}: {str(error)[:200]!r}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing.run")
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--work", type=Path, required=True)
    return parser.parse_args()


def _resident_megabytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


if __name__ == "__main__":
    main()
