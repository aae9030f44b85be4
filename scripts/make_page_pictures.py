"""Take the pictures of the page, of commands and of reports that docs/how-to shows: 1440 pixels
wide, light and dark, and terminals of 80x24 and 120x40 characters.

    python -m scripts.make_page_pictures [DIRECTORY]
    python -m scripts.make_page_pictures DIRECTORY --all

With `--all`, take every view instead, to look at: the page and the reports of checkpoints at 390
and 1440 pixels, and the commands in terminals of 80x24 and 120x40, all dark and light.

A real daemon, on a machine with four GPUs that NVML's double pretends: jobs that only report and
hold GPU memory, and one that trains, is cancelled and resumed. The history of the day before is
made up. It takes about two minutes, and with `--all` ten.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from benchmarks.daemon import JOB, daemon
from benchmarks.measuring import zerotools
from benchmarks.runs import checkpoint
from benchmarks.watching.doubles import gpus_of
from harness.browser import started_browser, why_no_browser
from scripts.terminal_pictures import DARK, LIGHT, SCHEMES, Scheme, record, screen_svg, write
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.states import TERMINAL
from zerotoolsd.monitoring.history_file import AttemptPeak, HistoryFile, bucket_of

EVERY_WIDTH, EVERY_SCHEME, EVERY_SCREEN = (390, 1440), ("light", "dark"), ((80, 24), (120, 40))
PARTS = ("curves", "log", "checkpoints", "predictions", "examples", "attempts")
COMMANDS = (
    "queue --all",
    "monitor --once",
    "shares",
    "show {job}",
    "show {job} --plot",
    "explain 4",
)
COLOURS = 256
"""The most colours of a picture, none of which differs visibly from its original."""
PHONE = (390, 844)
IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
GPUS, GPU_MIB, WIDTH, HEIGHT, WATCHED_SECONDS = 4, 81559, 1440, 900, 15.0
HOUR, DAY, STEP = 3600, 86400, 60
USERS = (os.getuid(), 1001, 1002)
SCREEN, LARGE, TOP_SECONDS = (80, 24), (120, 40), 12.0
TOP_VIEWS = {
    "top": (b"", "qwen2.5-7b-sft"),
    "top-job": (b"jj\r", "times "),
    "top-log": (b"jjl", "log of job"),
    "top-help": (b"?", "marks"),
}
"""Each view of `top`: the keys that show it, and a text that it has. The third job trains."""
TOP_PICTURES = (
    ("top", "top", SCREEN, DARK),
    ("top-large", "top", LARGE, LIGHT),
    ("top-job", "top-job", LARGE, DARK),
)
"""The pictures of `top` in the documentation: their names, the views, the sizes, the colours."""
CANCELLED_AT, RESUMED_TO, DAMAGED_BYTES = 90, 120, 8 * 2**20
CONFIG = """
[gpus]
locks = ""
[limits]
cpu_ranks = 4
"""
HOLDS = """
import math, os, random, sys, time
from pathlib import Path
from zerotools import worker
held, mib, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rank = int(os.environ["RANK"])
device = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])]
noise = random.Random(mib)
for step in range(1, steps + 1):
    grown = int(mib * min(1.0, 0.4 + step / 60))
    note = held / f".{os.getpid()}"
    note.write_text(f"{device} {os.getpid()} {grown}")
    note.rename(held / str(os.getpid()))
    if rank == 0:
        loss = 1.9 + 6 * math.exp(-step / 40) + noise.gauss(0, 0.05)
        worker.report(step, steps=steps, loss=loss, lr=3e-4, tokens_per_second=71_000 + step)
    if worker.should_stop():
        break
    time.sleep(0.5)
(held / str(os.getpid())).unlink()
"""


def main() -> None:
    """Write the pictures."""
    if (why := why_no_browser()) is not None:
        sys.exit(why)
    takes_all = "--all" in sys.argv
    named = [each for each in sys.argv[1:] if each != "--all"]
    if takes_all and not named:
        sys.exit("--all needs a DIRECTORY; name one")
    images = Path(named[0]) if named else IMAGES
    images.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as directory:
        work = Path(directory)
        os.environ.update(gpus_of(work, GPUS))
        _write_history(work / "state")
        with (
            gpus_held(work) as held,
            daemon(work / "state", CONFIG) as (_, client),
            started_browser() as browser,
        ):
            trained = _submit_all(client, work, held)
            _wait_until(client, trained, lambda job: _step_of(job) >= RESUMED_TO)
            time.sleep(WATCHED_SECONDS)
            if takes_all:
                _take_every_view(browser, client, trained, images)
                _take_terminals(work, trained, images)
                _take_reports(browser, work, images)
            else:
                _take(browser, client, trained, images)
                _take_screens(work, images)
                _take_shown_reports(browser, work, images)
            _end(client)
    for picture in images.glob("*.png"):
        taken = Image.open(picture).convert("RGB")
        palette, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
        taken.quantize(COLOURS, palette, dither=dither).save(picture, optimize=True)


def _write_history(state: Path) -> None:
    """Write a day of jobs of three users, up to an hour ago."""
    state.mkdir()
    chance, now = random.Random(4), int(time.time())
    jobs, samples = list[AttemptPeak](), defaultdict[int, dict[str, float]](dict)
    for gpu in range(GPUS):
        uuid, begin = f"GPU-double-{gpu}", now - DAY
        while begin < now - HOUR:
            end = begin + chance.randrange(HOUR, 9 * HOUR)
            load, uid, number = chance.uniform(0.3, 0.97), chance.choice(USERS), 100 + len(jobs)
            works = chance.random() < 0.8
            if works:
                jobs.append(AttemptPeak(job_id=number, attempt=1, uid=uid, name="before"))
            for at in range(begin // STEP * STEP, min(end, now - HOUR), STEP):
                held = load * GPU_MIB * 2.0**20 if works else 0.0
                busy = 100 * load + chance.gauss(0, 3) if works else 0.0
                found = {f"gpu.{uuid}.utilization_percent": max(0.0, min(100.0, busy))}
                found[f"gpu.{uuid}.memory_used_bytes"] = held + 420 * 2**20
                found["host.cpu_percent"] = 20 + 10 * load
                if works:
                    found[f"job.{number}.gpu.{uuid}.memory_used_bytes"] = held
                samples[at] |= found
            begin = end
    file = HistoryFile(state)
    buckets = [bucket_of(at, samples[at]) for at in sorted(samples)]
    file.add(buckets, jobs)
    file.roll_up(now)
    file.close()


@contextmanager
def gpus_held(work: Path) -> Iterator[Path]:
    """A directory in which a process says what it holds of a GPU: `UUID PID MIB`. NVML's double
    repeats it until the end of the block."""
    held, over = work / "held", threading.Event()
    held.mkdir()
    state = Path(os.environ["NVML_DOUBLE"])

    def repeat() -> None:
        while not over.wait(0.25):
            notes = [read.split() for each in held.glob("[0-9]*") if (read := _text(each))]
            state_now = state.with_suffix(".new")
            state_now.write_text(_machine([(uuid, pid, int(mib)) for uuid, pid, mib in notes]))
            state_now.rename(state)

    repeats = threading.Thread(target=repeat)
    repeats.start()
    try:
        yield held
    finally:
        over.set()
        repeats.join()


def _machine(notes: list[tuple[str, str, int]]) -> str:
    lines = []
    for gpu in range(GPUS):
        own = [(pid, mib) for at, pid, mib in notes if at == f"GPU-double-{gpu}"]
        used = 420 + sum(mib for _, mib in own)
        lines.append(f"gpu GPU-double-{gpu} {GPU_MIB} {used} 0")
        busy = (93, 64, 655, 1755) if own else (0, 31, 72, 345)
        lines.append(f"runs {gpu} " + " ".join(map(str, busy)))
        lines += [f"hold {gpu} {pid} {mib}" for pid, mib in own]
    return "\n".join(lines) + "\n"


def _text(note: Path) -> str:
    try:
        return note.read_text()
    except FileNotFoundError:  # its process has just ended
        return ""


def _submit_all(client: DaemonClient, work: Path, held: Path) -> int:
    """The id of the job that trains on."""
    program = work / "holds.py"
    program.write_text(HOLDS)

    def holding(name: str, gpus: int, mib: int, **more: Any) -> int:
        command = [sys.executable, str(program), str(held), str(mib), "2000"]
        script = {"command": command, "directory": str(work)}
        return _submit(
            client,
            {
                "name": name,
                "device": "cuda",
                "gpus": gpus,
                "engine": "script",
                "script": script,
                **more,
            },
        )

    trained = _submit(client, _training(work))
    holding("qwen2.5-7b-sft", 2, 61_000)
    holding("bert-large-mlm", 1, 34_000)
    holding("ablation-no-warmup", 4, 20_000)
    holding("ablation-long-warmup", 1, 24_000)
    _wait_until(client, trained, lambda job: _step_of(job) >= CANCELLED_AT)
    client.cancel(trained)
    _wait_until(client, trained, lambda job: job["state"] in TERMINAL)
    return int(client.resume(trained)["id"])


def _training(work: Path) -> dict[str, Any]:
    return {
        **JOB,
        "name": "llama-tiny",
        "output_dir": str(work / "llama-tiny"),
        "data": {"text": [str(IMAGES.parent / "how-to" / "*.md")], "sequence_length": 64},
        "eval": {"files": [str(IMAGES.parent / "tutorial" / "*.md")], "every": 20},
        "train": {"steps": 1200, "batch_size": 4, "learning_rate": 2e-3},
        "checkpoint": {"every": 40},
    }


def _submit(client: DaemonClient, job: Mapping[str, Any]) -> int:
    return int(client.submit(job_from_dict(dict(job), source="job"))["id"])


def _step_of(job: Mapping[str, Any]) -> int:
    return int((job.get("progress") or {}).get("step", 0))


def _wait_until(client: DaemonClient, job: int, holds: Callable[[dict[str, Any]], bool]) -> None:
    for _ in range(6000):  # the machine may be busy
        if holds(client.job(job)):
            return
        time.sleep(0.1)
    sys.exit(f"job {job} does not get on: {client.job(job)}")


def _take(browser: Any, client: DaemonClient, trained: int, images: Path) -> None:
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(client.web_link()["url"])
    page.wait_for_selector("#link.live")
    places = {"jobs": "jobs", "job": f"jobs/{trained}", "machine": "machine", "gpu": "machine/0"}
    for name, place in places.items():
        page.evaluate("(place) => { location.hash = place; }", f"#/{place}")
        if name == "machine":
            page.get_by_label("24 h").check()
        page.wait_for_timeout(3000)
        if name == "gpu":
            page.evaluate("() => document.querySelector('.heat').scrollIntoView()")
            page.mouse.wheel(0, -120)  # below the head of the page
            page.wait_for_timeout(500)
        page.screenshot(path=images / f"page-{name}.png", full_page=False)
    page.emulate_media(color_scheme="dark")
    page.evaluate("(job) => { location.hash = `#/jobs/${job}`; }", trained)
    page.wait_for_timeout(3000)
    page.screenshot(path=images / "page-dark.png", full_page=False)
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page.evaluate("location.hash = '#/jobs'")
    page.wait_for_timeout(3000)
    page.screenshot(path=images / "page-phone.png", full_page=False)


def _take_every_view(browser: Any, client: DaemonClient, trained: int, images: Path) -> None:
    views = {name: f"#/{name}" for name in ("jobs", "machine", "machine/host", "events", "submit")}
    views |= {f"job-{part}": f"#/jobs/{trained}/{part}" for part in PARTS}
    views["compare"] = f"#/jobs/{trained}/curves/1"
    for width, scheme in product(EVERY_WIDTH, EVERY_SCHEME):
        page = _page_of(browser, width, scheme)
        page.goto(client.web_link()["url"])
        page.wait_for_selector("#link.live")
        for name, place in views.items():
            page.evaluate("(place) => { location.hash = place; }", place)
            page.wait_for_timeout(2000)
            taken = images / f"page-{name.replace('/', '-')}-{width}-{scheme}.png"
            page.screenshot(path=taken, full_page=True)
        page.context.close()


def _page_of(browser: Any, width: int, scheme: str) -> Any:
    size = {"width": width, "height": PHONE[1] if width == PHONE[0] else 900}
    options = {"viewport": size, "color_scheme": scheme, "reduced_motion": "reduce"}
    return browser.new_context(**options).new_page()


def _take_terminals(work: Path, trained: int, images: Path) -> None:
    for screen, (name, scheme) in product(EVERY_SCREEN, SCHEMES.items()):
        environment = _terminal(work, scheme)
        end = f"{screen[0]}x{screen[1]}-{name}.svg"
        for view in TOP_VIEWS:
            _take_top(work, images / f"{view}-{end}", view, screen, scheme)
        for command in COMMANDS:
            words = command.format(job=trained).split()
            output = record(["zerotools", *words], environment, screen)
            write(
                images / f"{'-'.join(words)}-{end}",
                screen_svg(command, output, screen, bool, scheme),
            )


def _terminal(work: Path, scheme: Scheme) -> dict[str, str]:
    """The environment of a command in a terminal with these colours."""
    socket = str(work / "state" / "api.sock")
    return {"ZEROTOOLS_SOCKET": socket, "COLORFGBG": scheme.colorfgbg}


def _keys(pressed: bytes) -> list[tuple[float, bytes]]:
    """The keys of a view of `top`, and one `q` to leave each view."""
    first = [(TOP_SECONDS - 3, pressed)] if pressed else []
    leaves = [(TOP_SECONDS + number, b"q") for number in range(1 + len(first))]
    return [*first, *leaves]


def _has(part: str) -> Callable[[str], bool]:
    return lambda text: part in text


def _take_reports(browser: Any, work: Path, images: Path) -> None:
    """The pages of `inspect`, `verify` and `diff` at all widths, dark and light."""
    reports = _make_reports(work)
    for width, scheme in product(EVERY_WIDTH, EVERY_SCHEME):
        page = _page_of(browser, width, scheme)
        for name, report in reports.items():
            page.goto(report.as_uri())
            page.wait_for_timeout(1000)
            page.screenshot(path=images / f"report-{name}-{width}-{scheme}.png")
        page.context.close()


def _make_reports(work: Path) -> dict[str, Path]:
    """The pages of `inspect` of a run of ZeRO-3 on four ranks, of `diff` of the exported model and
    a later one, and of `verify` of the model after damage."""

    def report(name: str, *paths: str) -> None:
        command = zerotools(name, *paths, "--html", f"{name}.html")
        subprocess.run(command, capture_output=True, cwd=work, check=name == "inspect")

    with checkpoint(work, "--model", "271M", "--ranks", "4", name="run"):
        report("inspect", "run")
        command = zerotools("consolidate", "run", "step-100", "--verify")
        subprocess.run(command, capture_output=True, cwd=work, check=True)
    _train_on(work / "step-100", work / "step-200")
    report("diff", "step-100", "step-200")
    with (work / "step-100" / "model.safetensors").open("r+b") as file:
        file.seek(file.seek(0, os.SEEK_END) // 2)
        file.write(os.urandom(DAMAGED_BYTES))
    report("verify", "step-100")
    return {name: work / f"{name}.html" for name in ("inspect", "verify", "diff")}


def _train_on(before: Path, after: Path) -> None:
    """Write the model `before` with random changes, larger ones in later layers."""
    torch.manual_seed(0)
    tensors = load_file(before / "model.safetensors")
    for name, tensor in tensors.items():
        layer = re.search(r"layers\.(\d+)", name)
        size = 1e-3 * (1 + (int(layer[1]) if layer else 4) * (2 if "mlp" in name else 1))
        tensors[name] = (tensor * (1 + size * torch.randn(tensor.shape))).to(tensor.dtype)
    after.mkdir()
    save_file(tensors, after / "model.safetensors", {"format": "pt"})


def _take_screens(work: Path, images: Path) -> None:
    """`zerotools top` when it shows jobs and their GPU memory, and `queue`."""
    for name, view, screen, scheme in TOP_PICTURES:
        _take_top(work, images / f"{name}.svg", view, screen, scheme)
    output = record(["zerotools", "queue"], _terminal(work, DARK), SCREEN)
    write(images / "queue.svg", screen_svg("zerotools queue", output, SCREEN, bool))


def _take_top(
    work: Path, picture: Path, view: str, screen: tuple[int, int], scheme: Scheme
) -> None:
    pressed, shown = TOP_VIEWS[view]
    output = record(["zerotools", "top"], _terminal(work, scheme), screen, keys=_keys(pressed))
    write(picture, screen_svg(f"zerotools {view}", output, screen, _has(shown), scheme))


def _take_shown_reports(browser: Any, work: Path, images: Path) -> None:
    """The pages of a checkpoint, also on a phone, of what is damaged in it, and of what training
    changed."""
    names = {"inspect": "checkpoint", "verify": "damage", "diff": "change"}
    for name, report in _make_reports(work).items():
        for width, end in ((WIDTH, ""), (PHONE[0], "-phone")):
            if end and name != "inspect":
                continue
            page = _page_of(browser, width, "light")
            page.goto(report.as_uri())
            page.wait_for_timeout(1000)
            page.screenshot(path=images / f"{names[name]}{end}.png")
            page.context.close()


def _end(client: DaemonClient) -> None:
    for job in client.jobs():
        if job["state"] not in TERMINAL:
            client.cancel(job["id"])
    for job in client.jobs():
        _wait_until(client, job["id"], lambda now: now["state"] in TERMINAL)


if __name__ == "__main__":
    main()
