"""Parts of a delta make one delta in any order, and what does not fit together is refused."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zerotools
from tests.matrices import FULL
from tests.ops.delta.pairs import loaded, stepped, weights, write_model
from zerotools.io.output.journal import NAME
from zerotools.io.output.staging import partial_of


def several(seed: int = 0) -> dict[str, Any]:
    """Tensors of a model of several blocks."""
    return {**weights(seed), **{f"w{n}": weights(seed + n)["a.weight"] for n in range(1, 4)}}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Models A and B, and the path of their delta."""
    after = stepped(several(), 0.02)
    after["w2"] = stepped({**after, "a.weight": after["w2"]}, 0.5)["a.weight"]
    after["fresh"] = weights(9)["b.weight"]
    a, b = write_model(tmp_path / "a", several()), write_model(tmp_path / "b", after, files=2)
    return a, b, tmp_path / "ab.delta"


def split(delta: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a delta without `made_of`, and its bytes between the header and the digest."""
    data = delta.read_bytes()
    begin = 16 + int.from_bytes(data[8:16], "little")
    header = json.loads(data[16:begin])
    header.pop("made_of", None)
    return header, data[begin:-16]


def entries(path: Path) -> set[str]:
    return {each.name for each in path.iterdir()}


@pytest.mark.parametrize("order", [[1], [1, 2, 3], [3, 2, 1], [*range(40 if FULL else 12, 0, -1)]])
def test_parts_in_any_order_have_the_blocks_of_one_run(
    order: list[int], pair: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    a, b, out = pair
    whole = zerotools.delta(a, b, tmp_path / "whole")
    done = 0
    for at, index in enumerate(order):
        found = zerotools.delta(a, b, out, part=(index, len(order)))
        assert found.part is not None
        assert found.part.missing == tuple(sorted(order[at + 1 :]))
        done += found.part.bytes
        assert out.exists() == (not found.part.missing)
    assert (found.changed, found.elements) == (whole.changed, whole.elements)
    assert found.new_tensors == ("fresh",)
    assert found.delta_bytes == out.stat().st_size
    assert done == sum(map(len, loaded(b).values()))
    assert split(out) == split(tmp_path / "whole")
    assert entries(tmp_path) == {"a", "b", "whole", "ab.delta"}
    zerotools.apply(a, out, tmp_path / "made")
    assert loaded(tmp_path / "made") == loaded(b)


def test_a_part_after_the_last_one_has_nothing_to_do(pair: tuple[Path, Path, Path]) -> None:
    a, b, out = pair
    for index in (1, 2):
        found = zerotools.delta(a, b, out, part=(index, 2))
    before = out.stat()
    for overwrite in (False, True):
        again = zerotools.delta(a, b, out, part="1/2", overwrite=overwrite)
        assert again.part is not None
        assert again.part.missing == ()
        assert (again.changed, again.delta_bytes) == (found.changed, found.delta_bytes)
    after = out.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not partial_of(out).exists()


def test_a_part_continues_and_only_a_complete_one_counts(pair: tuple[Path, Path, Path]) -> None:
    a, b, out = pair
    zerotools.delta(a, b, out, part="1/2")
    first = partial_of(out) / "part-1"
    whole = first.read_bytes()
    status = first.stat()
    zerotools.delta(a, b, out, part="1/2")
    assert first.stat() == status
    first.write_bytes(whole[:-1])
    found = zerotools.delta(a, b, out, part="2/2")
    assert found.part is not None
    assert found.part.missing == (1,)
    with pytest.raises(
        zerotools.BadRequest, match=r"does not exist, and .* in 2 parts, and not all"
    ):
        zerotools.apply(a, out, out.with_name("made"))
    with pytest.raises(zerotools.BadFile, match="is an output in 2 parts, and not all are"):
        zerotools.apply(a, partial_of(out), out.with_name("made"))
    with pytest.raises(zerotools.BadFile, match="/b is a directory, and not a delta"):
        zerotools.apply(a, b, out.with_name("made"))
    first.write_bytes(whole[:-1] + b"\0")
    with pytest.raises(zerotools.BadFile, match=r"part-1 is damaged: its digest is \w+, but \w+ "):
        zerotools.delta(a, b, out, part="2/2")
    assert not out.exists()
    first.unlink()
    zerotools.delta(a, b, out, part="1/2")
    zerotools.apply(a, out, out.with_name("made"))
    assert loaded(out.with_name("made")) == loaded(b)


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_damaged_delta_of_the_same_models_is_made_again_on_request(
    is_cut: bool, pair: tuple[Path, Path, Path]
) -> None:
    a, b, out = pair
    zerotools.delta(a, b, out, part="1/1")
    whole = out.read_bytes()
    out.write_bytes(whole[:-1] + (b"" if is_cut else bytes([whole[-1] ^ 1])))
    with pytest.raises(zerotools.BadFile, match=r"is (damaged|truncated).*; pass --overwrite for"):
        zerotools.delta(a, b, out, part="1/2")
    for index in (1, 2):
        zerotools.delta(a, b, out, part=(index, 2), overwrite=True)
    assert out.read_bytes() == whole


def test_a_place_where_no_file_can_be_is_named(pair: tuple[Path, Path, Path]) -> None:
    a, b, _ = pair
    for out in (Path("/"), a):
        for part in (None, "1/2"):
            with pytest.raises(zerotools.BadRequest, match=f"{out} is a directory; name a file"):
                zerotools.delta(a, b, out, part=part)
    with pytest.raises(
        zerotools.BadRequest, match=r"json/d cannot be written: .*: Not a directory"
    ):
        zerotools.delta(a, b, a / "config.json" / "d", part="1/2")


def test_a_killed_part_leaves_the_others(pair: tuple[Path, Path, Path]) -> None:
    a, b, out = pair
    zerotools.delta(a, b, out, part="2/2")
    program = (
        "import os, signal, sys, zerotools; "
        "zerotools.delta(*sys.argv[1:], part='1/2', workers=1, "
        "progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))"
    )
    killed = subprocess.run([sys.executable, "-c", program, a, b, out], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    with pytest.raises(zerotools.BadFile, match=r"is truncated: its end|is empty"):
        zerotools.apply(a, partial_of(out) / "part-1", out.with_name("made"))
    with pytest.raises(zerotools.BadFile, match="is not a delta"):
        zerotools.apply(a, partial_of(out) / "part-2", out.with_name("made"))
    zerotools.delta(a, b, out, part="1/2")
    zerotools.apply(a, out, out.with_name("made"))
    assert loaded(out.with_name("made")) == loaded(b)


@pytest.mark.parametrize("left", [{"part-1", NAME, f"{NAME}.2"}, {NAME}, set()])
def test_what_a_kill_after_the_last_part_left_is_removed_by_any_part(
    left: set[str], pair: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    a, b, out = pair
    zerotools.delta(a, b, out, part="1/2")
    saved = tmp_path / "saved"

    def save(_: object) -> None:
        shutil.rmtree(saved, ignore_errors=True)
        shutil.copytree(partial_of(out), saved)

    zerotools.delta(a, b, out, part="2/2", progress=save)
    saved.rename(partial_of(out))
    for name in entries(partial_of(out)) - left:
        (partial_of(out) / name).unlink()
    found = zerotools.delta(a, b, out, part="1/2")
    assert found.part is not None
    assert found.part.missing == ()
    assert entries(tmp_path) == {"a", "b", "ab.delta"}


def test_parts_of_another_delta_stay(pair: tuple[Path, Path, Path]) -> None:
    a, b, out = pair
    for index in (1, 2):
        zerotools.delta(a, b, out, part=(index, 2))
    zerotools.delta(b, a, out, part="1/2", overwrite=True)
    before = entries(partial_of(out))
    zerotools.delta(a, b, out, part="1/2", overwrite=True)
    assert entries(partial_of(out)) == before


def test_a_file_that_cannot_be_written_is_named_and_removed(pair: tuple[Path, Path, Path]) -> None:
    a, b, out = pair
    program = (
        "import resource, sys, zerotools; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); "
        "zerotools.delta(*sys.argv[1:], part='1/2')"
    )
    command = [sys.executable, "-c", program, a, b, out]
    failed = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    assert f"File too large: '{partial_of(out) / 'part-1'}'" in failed.stderr
    assert entries(partial_of(out)) == {NAME, f"{NAME}.1"}


def test_what_does_not_fit_together_is_refused(pair: tuple[Path, Path, Path]) -> None:
    a, b, out = pair
    c = write_model(a.with_name("c"), several(5))
    zerotools.delta(a, b, out, part="1/2")
    before = entries(partial_of(out))
    with pytest.raises(zerotools.BadRequest, match="begun in 2 parts, but this run is one of 3"):
        zerotools.delta(a, b, out, part="3/3")
    for first, second in ((c, b), (a, c), (b, a)):
        with pytest.raises(zerotools.BadRequest, match=r"had other source files.*; remove"):
            zerotools.delta(first, second, out, part="2/2")
    with pytest.raises(zerotools.BadRequest, match="had other options"):
        zerotools.delta(a, b, out, part="2/2", dtype="fp32")
    with pytest.raises(zerotools.BadRequest, match="is being written in 2 parts; run the missing"):
        zerotools.delta(a, b, out)
    os.utime(b / "config.json", (1, 1))
    with pytest.raises(zerotools.BadRequest, match="had other source files; remove"):
        zerotools.delta(a, b, out, part="2/2")
    assert not out.exists()
    assert entries(partial_of(out)) == before


def test_one_run_makes_a_part_at_a_time(pair: tuple[Path, Path, Path]) -> None:
    a, b, out = pair
    refused: list[str] = []

    def again(_: object) -> None:
        if not refused:
            with pytest.raises(zerotools.BadRequest) as found:
                zerotools.delta(a, b, out, part="1/2")
            refused.append(str(found.value))

    zerotools.delta(a, b, out, part="1/2", progress=again)
    assert refused[0].startswith(f"another run is writing part 1 of 2 of {partial_of(out)};")


def test_a_run_without_parts_is_not_disturbed(pair: tuple[Path, Path, Path]) -> None:
    a, b, out = pair
    draft = partial_of(out)
    draft.write_bytes(b"draft")
    with pytest.raises(zerotools.BadRequest, match="is the unfinished file of a run without"):
        zerotools.delta(a, b, out, part="1/2")
    assert draft.read_bytes() == b"draft"
    draft.unlink()
    draft.mkdir()
    with pytest.raises(zerotools.BadRequest, match="is a directory, but the delta is written to"):
        zerotools.delta(a, b, out)
    (draft / "notes.txt").touch()
    with pytest.raises(zerotools.BadRequest, match="holds files of a run without --part"):
        zerotools.delta(a, b, out, part="1/2")
    assert entries(draft) == {"notes.txt"}


def test_a_delta_is_replaced_when_all_parts_are_complete(pair: tuple[Path, Path, Path]) -> None:
    a, b, out = pair
    zerotools.delta(b, a, out)
    before = out.read_bytes()
    with pytest.raises(zerotools.BadRequest, match="exists; choose another output"):
        zerotools.delta(a, b, out, part="1/2")
    zerotools.delta(a, b, out, part="1/2", overwrite=True)
    assert out.read_bytes() == before
    zerotools.delta(a, b, out, part="2/2", overwrite=True)
    zerotools.apply(a, out, out.with_name("made"))
    assert loaded(out.with_name("made")) == loaded(b)
    with pytest.raises(zerotools.BadRequest, match=r"config\.json is not a delta, so --overwrite"):
        zerotools.delta(a, b, a / "config.json", part="1/2", overwrite=True)
    assert not partial_of(a / "config.json").exists()


def test_an_output_that_appears_meanwhile_is_kept(pair: tuple[Path, Path, Path]) -> None:
    a, b, out = pair
    zerotools.delta(a, b, out, part="1/2")
    with pytest.raises(zerotools.BadRequest, match="exists; choose another output"):
        zerotools.delta(a, b, out, part="2/2", progress=lambda _: out.write_bytes(b"theirs"))
    assert out.read_bytes() == b"theirs"


def test_parts_that_are_removed_meanwhile_are_no_delta(pair: tuple[Path, Path, Path]) -> None:
    a, b, out = pair
    zerotools.delta(a, b, out, part="1/2")

    def remove(_: object) -> None:
        for each in [*partial_of(out).glob("*"), *partial_of(out).glob(f"{NAME}*")]:
            each.unlink(missing_ok=True)
        if partial_of(out).exists():
            partial_of(out).rmdir()

    with pytest.raises(zerotools.BadRequest, match="was moved or removed while it was written"):
        zerotools.delta(a, b, out, part="2/2", progress=remove)
    assert not out.exists()


def test_parts_are_joined_in_a_directory_alone(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = pair
    monkeypatch.delenv("RANK", raising=False)
    for out in ("-", io.BytesIO()):
        with pytest.raises(zerotools.BadRequest, match="joined in a directory next to it; name a"):
            zerotools.delta(a, b, out, part="1/2")
    with pytest.raises(zerotools.Unsupported, match="cannot write parts of one file; leave"):
        zerotools.delta(a, b, "s3://bucket/ab.delta", part="1/2")
    with pytest.raises(zerotools.BadRequest, match="parts are counted from 1/2 to 2/2"):
        zerotools.delta(a, b, a.with_name("d"), part="3/2")
    with pytest.raises(zerotools.BadRequest, match="RANK is not set; start the command by"):
        zerotools.delta(a, b, a.with_name("d"), part_from="torchrun")
