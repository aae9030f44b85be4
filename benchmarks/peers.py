"""`zerotools` and other tools on the same files: time, memory, and what each makes of damage.

    python -m benchmarks.peers 271M [--runs 3] [--work DIRECTORY]
    python -m benchmarks.peers damage

271M: ZeRO-3 of 4 ranks, 3.2 GB, and its weights as torch DCP of 4 ranks, 1.1 GB; warm cache, whole
processes. damage: a tiny checkpoint in both formats, with one fault each. Every output is compared
with that of another tool, tensor by tensor. `zerotools` flushes what it writes to the disk, the
others do not.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.consolidate import copied_script, table
from benchmarks.measuring import interleaved, machine, sized_benchmark, zerotools
from benchmarks.runs import Commands, checkpoint, fresh
from zerotools import open as open_checkpoint

Command = Callable[[Path, Path], list[str]]
"""The words of a command, by the checkpoint and the output."""
SAME = """
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file
def read(path):
    if path.is_file():
        found = torch.load(path, mmap=True)
        return found["model"] if "model" in found else found
    return {n: t for f in path.glob("*.safetensors") for n, t in load_file(f).items()}
a, b = (read(Path(p)) for p in sys.argv[1:])
sys.exit(not (a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)))
"""
ZERO, DCP = "ZeRO-3", "torch DCP"
RAN = "ran"


def module(name: str, *words: str) -> Command:
    """A tool that is run as a module: `{0}` is the checkpoint, `{1}` the output."""
    return lambda source, out: [
        *(sys.executable, "-m", name),
        *(word.format(source, out) for word in words),
    ]


def script(name: str, *words: str) -> Command:
    """A script that DeepSpeed puts into every checkpoint."""
    return lambda source, out: [
        sys.executable,
        str(copied_script(sys.executable, out.parent).with_name(name)),
        str(source),
        str(out),
        *words,
    ]


def ours(*words: str) -> Command:
    return lambda source, out: zerotools(words[0], source, out, *words[1:])


def verified(make: Command, source: Path, out: Path) -> list[str]:
    return [*make(source, out), "--verify"]


TAG = "global_step100"
TASKS: Mapping[str, tuple[str, Mapping[str, Command]]] = {
    "ZeRO-3 to bf16 safetensors": (
        ZERO,
        {
            "zerotools consolidate": ours("consolidate", "--dtype", "bf16"),
            "DeepSpeed zero_to_torch.py": script(
                "zero_to_torch.py", "--safe_serialization", "--dtype", "bf16"
            ),
        },
    ),
    "ZeRO-3 to fp32 safetensors": (
        ZERO,
        {
            "zerotools consolidate": ours("consolidate", "--dtype", "fp32"),
            "DeepSpeed zero_to_fp32.py": script("zero_to_fp32.py", "--safe_serialization"),
        },
    ),
    "ZeRO-3 for 8 ranks in place of 4": (
        ZERO,
        {
            "zerotools reshard": ours("reshard", "--world-size", "8"),
            "DeepSpeed ds_to_universal": module(
                "deepspeed.checkpoint.ds_to_universal",
                *("--input_folder", "{0}/" + TAG, "--output_folder", "{1}"),
            ),
        },
    ),
    "torch DCP to fp32 weights": (
        DCP,
        {
            "zerotools consolidate": ours("consolidate", "--dtype", "fp32"),
            "accelerate merge-weights": module(
                "accelerate.commands.accelerate_cli", "merge-weights", "{0}", "{1}"
            ),
            "torch dcp_to_torch": module(
                "torch.distributed.checkpoint.format_utils", "dcp_to_torch", "{0}", "{1}"
            ),
        },
    ),
}


def dcp_of(source: Path, work: Path) -> Path:
    """The weights of a ZeRO checkpoint as a torch DCP of 4 ranks."""
    plain, dcp = work / "plain", work / "dcp"
    subprocess.run(
        zerotools("consolidate", source, plain, "--dtype", "fp32"), check=True, capture_output=True
    )
    command = zerotools("convert", plain, dcp, "--to", "dcp", "--world-size", "4")
    subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(plain)
    return dcp


def is_same(one: Path, other: Path) -> bool:
    command = [sys.executable, "-c", SAME, str(one), str(other)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def speed(work: Path, runs: int) -> None:
    """271M: time and memory, and whether the outputs have the same bits."""
    with checkpoint(work, "--model", "271M", "--ranks", "4") as zero:
        sources = {ZERO: zero, DCP: dcp_of(zero, work)}
        for task, (kind, tools) in TASKS.items():
            outs = {tool: work / f"out-{number}" for number, tool in enumerate(tools)}
            commands: Commands = {
                tool: partial(fresh, outs[tool], make(sources[kind], outs[tool]))
                for tool, make in tools.items()
            }
            results = interleaved(commands, runs=runs)
            mine, *others = outs.values()
            said = [str(is_same(mine, other)) for other in others]
            print(f"## {task}\n")
            table(results, phase=False)
            if "ranks" not in task:
                print(f"same bits as zerotools: {', '.join(said)}\n")
            for out in outs.values():
                remove(out)


class Program:
    """An object that runs a program where it is unpickled without restriction."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {RAN}",)


def shard(source: Path) -> Path:
    """The last file of the weights."""
    names = ("*rank_1*optim_states.pt", "*.distcp")
    return max(found for name in names for found in source.rglob(name))


def lose(source: Path) -> None:
    shard(source).unlink()


def cut(source: Path) -> None:
    path = shard(source)
    os.truncate(path, path.stat().st_size * 2 // 3)


def flip(source: Path) -> None:
    """Change one bit of the first element of every tensor."""
    found = open_checkpoint(source).checkpoint
    for tensor in found.tensors.values():
        chunk = tensor.chunks[0]
        with (Path(found.root) / chunk.file).open("r+b") as file:
            file.seek(chunk.offset)
            byte = file.read(1)[0]
            file.seek(chunk.offset)
            file.write(bytes([byte ^ 0x40]))


def poison(source: Path) -> None:
    """Replace the pickle that every reader opens first by one that runs a program."""
    if source.name == DCP:
        (source / ".metadata").write_bytes(pickle.dumps(Program()))
        return
    import torch

    for path in source.rglob("*model_states.pt"):
        torch.save(Program(), path)


FAULTS: Mapping[str, Callable[[Path], None]] = {
    "none": lambda _: None,
    "a rank's file is missing": lose,
    "a rank's file is cut short": cut,
    "bits of the weights are flipped": flip,
    "a pickle runs a program": poison,
}


def damage(work: Path) -> None:
    """What each tool makes of each fault."""
    os.chdir(work)
    with checkpoint(work, "--model", "tiny", "--ranks", "2", name=ZERO) as zero:
        dcp_of(zero, work).rename(work / DCP)
        for kind in (ZERO, DCP):
            tools = {
                tool: make
                for task, (of, each) in TASKS.items()
                if of == kind and "bf16" not in task
                for tool, make in each.items()
            }
            tools |= {
                f"{tool} --verify": partial(verified, make)
                for tool, make in tools.items()
                if tool.startswith("zerotools")
            }
            print(f"## {kind}\n\n| fault | {' | '.join(tools)} |\n|{'---|' * (len(tools) + 1)}")
            for number, make in enumerate(tools.values()):
                right = make(work / kind, work / f"right-{number}")
                subprocess.run(right, check=True, capture_output=True)
            for fault, harm in FAULTS.items():
                spoilt = work / "spoilt" / kind
                shutil.copytree(work / kind, spoilt)
                harm(spoilt)
                cells = [
                    outcome(make(spoilt, work / "out"), work / "out", work / f"right-{number}")
                    for number, make in enumerate(tools.values())
                ]
                shutil.rmtree(spoilt)
                print(f"| {fault} | {' | '.join(cells)} |", flush=True)
            for number in range(len(tools)):
                remove(work / f"right-{number}")
            print()


def outcome(command: list[str], out: Path, right: Path) -> str:
    """In words: what came of a damaged checkpoint, against what comes of the whole one."""
    done = subprocess.run(command, check=False, capture_output=True)
    if (ran := Path(RAN)).exists():
        ran.unlink()
        said = "**runs it**"
    elif done.returncode:
        said = "refused"
    else:
        said = "right" if is_equal(right, out) else "**wrong, status 0**"
    remove(out)
    return said


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_equal(right: Path, out: Path) -> bool:
    """Whether two outputs have the same files, or of weights the same tensors."""
    if right.is_file() or any(right.glob("*.safetensors")):
        return is_same(right, out)
    names = [file.relative_to(right) for file in right.rglob("[!.]*") if file.is_file()]
    return all(
        (out / name).is_file() and (out / name).read_bytes() == (right / name).read_bytes()
        for name in names
    )


def main() -> None:
    with sized_benchmark(__doc__, ("271M", "damage"), runs=3) as asked:
        print(f"{asked.size}: {machine()}\n")
        if asked.size == "271M":
            speed(asked.work, asked.runs)
        else:
            damage(asked.work)


if __name__ == "__main__":
    main()
