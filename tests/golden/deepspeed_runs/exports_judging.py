"""transformers judges what `consolidate` makes of small models of many architectures.

    python -m tests.golden.deepspeed_runs.exports_judging [--variants NAME ...] [KIND ...]

Each model is plain, tied, in a wrapper or with adapters, and saved by two ranks in six forms
(`exported`). The wrapper changes with the architecture; `--variants checkpointed` has every model
in the same one. An export either loads with every weight, equal to the model's, or nothing is
written. Prints Markdown, and exits with 1 unless every export loads.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import zerotools
from tests.exported_models import KINDS, class_of, varied
from zerotools.core.errors import ZerotoolsError

from .launch import launch

VARIANTS = ("plain", "tied", "wrapped", "lora")
FORMS = ("zero1", "zero2", "zero3", "dcp", "ranks", "file")
LOADS, REFUSED, WRONG, UNSAVED = "loads", "refused", "WRONG", "not saved"


def cases_of(kind: str, variants: Sequence[str] = VARIANTS) -> list[str]:
    """KIND:VARIANT:FORM of every variant and form."""
    return [f"{kind}:{variant}:{form}" for variant in variants for form in FORMS]


def saved(directory: Path, cases: list[str]) -> dict[str, str]:
    """Save the cases by two ranks; returns those that could not be saved, with the error."""
    launch("tests.golden.deepspeed_runs.exported", cases, 2, directory)
    found: dict[str, str] = json.loads((directory / "lacking.json").read_text())
    return found


def outcome(directory: Path, case: str, truth: Callable[[], dict[str, Any]]) -> str:
    """Export a case; "loads", or why it was refused.

    Raises:
        AssertionError: the export lacks a weight, has one too many or of another value, or is there
            although the command failed.
    """
    kind, variant, form = case.split(":")
    source = directory / f"{kind}-{variant}" / form
    if form == "file":
        source /= "model.pt"
    out, place = directory / "out" / case.replace(":", "-"), directory / f"{kind}-{variant}"
    adapter = {"adapter_config": place} if variant == "lora" else {}
    try:
        zerotools.consolidate(source, out, dtype="fp32", config_dir=place, **adapter)
    except ZerotoolsError as error:
        assert not out.exists(), f"{case} was refused, and has an output"
        return f"{REFUSED}: {error}"
    cls: Any = class_of(kind)
    model, info = cls.from_pretrained(out, output_loading_info=True)
    shutil.rmtree(out)
    assert not any(info.values()), (case, info)
    expected = truth()
    for name, value in model.state_dict().items():
        if variant == "lora":  # the sum is rounded once by each
            torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-7)
        else:
            assert torch.equal(value, expected[name]), f"{case}: {name} has other values"
    return LOADS


def weights_of(kind: str, variant: str) -> dict[str, Any]:
    """The weights of the model as transformers has it: adapters are merged."""
    if variant == "lora":
        merged = varied(kind, variant, 0).merge_and_unload()
        return dict(merged.state_dict())
    return dict(varied(kind, "tied" if variant == "tied" else "plain", 0).state_dict())


@contextmanager
def trials_in_this_process() -> Iterator[None]:
    """Have programs of the trials of `loading_trial` run here, which has transformers imported."""
    run = subprocess.run
    subprocess.run = _in_this_process  # type: ignore[assignment]
    try:
        yield
    finally:
        subprocess.run = run


def _in_this_process(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    out, before = io.StringIO(), (sys.stdin, sys.stdout, sys.argv)
    sys.stdin, sys.stdout, sys.argv = io.StringIO(options["input"]), out, ["-c"]
    try:
        exec(command[3], {})
    except SystemExit:
        pass
    finally:
        sys.stdin, sys.stdout, sys.argv = before
    return subprocess.CompletedProcess(command, 0, out.getvalue(), "")


def judged(kind: str, directory: Path, variants: Sequence[str]) -> dict[str, str]:
    """The outcome of every case of an architecture."""
    cases = cases_of(kind, variants)
    lacking = saved(directory, cases)
    found = {case: f"{UNSAVED}: {why}" for case, why in lacking.items()}
    truths: dict[str, dict[str, Any]] = {}
    for case in (each for each in cases if each not in lacking):
        variant = case.split(":")[1]

        def truth(variant: str = variant) -> dict[str, Any]:
            if variant not in truths:
                truths[variant] = weights_of(kind, variant)
            return truths[variant]

        try:
            found[case] = outcome(directory, case, truth)
        except Exception as error:  # a defect of one case does not end the others
            found[case] = f"{WRONG}: {type(error).__name__}: {error!s:.300}"
    return found


def main(arguments: list[str]) -> int:
    parser = ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=[*KINDS], metavar="KIND")
    parser.add_argument("--variants", nargs="+", default=VARIANTS, metavar="NAME")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "deepspeed", "transformers", "peft")
    )
    print("# Exports that transformers loads\n")
    print(f"`python -m tests.golden.deepspeed_runs.{' '.join(['exports_judging', *arguments])}`")
    print(f"on {time.strftime('%Y-%m-%d')} with {versions}.\n")
    print(
        "Small models of each architecture, saved by two ranks as ZeRO 1 to 3, a DCP, a file of\n"
        "each rank and one file; `consolidate --dtype fp32` and transformers' own load. An\n"
        "export loads with nothing missing or unexpected and every weight equal (adapters are\n"
        "merged, within 1e-6), or nothing is written. Wrappers are Lightning's `model`,\n"
        "torch.compile, or checkpointed blocks in DDP's `module`.\n"
    )
    print("| architecture | " + " | ".join(options.variants) + " |")
    print("|---" * (1 + len(options.variants)) + "|")
    total, others = Counter[str](), dict[str, str]()
    with tempfile.TemporaryDirectory() as place, trials_in_this_process():
        for kind in options.kinds:
            directory = Path(place) / kind
            directory.mkdir()
            found = judged(kind, directory, options.variants)
            shutil.rmtree(directory)
            cells = []
            for variant in options.variants:
                own = [found[c].partition(":")[0] for c in found if f":{variant}:" in c]
                cells.append(", ".join(f"{n} {word}" for word, n in Counter(own).items()))
                total.update(own)
            print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)
            others |= {
                case: why.replace(str(directory), ".")
                for case, why in found.items()
                if why != LOADS
            }
    counts = ", ".join(f"{number} {word}" for word, number in total.most_common())
    print(f"\n{sum(total.values())} cases: {counts}.\n")
    for case, why in others.items():
        print(f"- `{case}` {' '.join(why.split())}")
    return int(total[LOADS] != sum(total.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
