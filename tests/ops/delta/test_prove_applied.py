"""With --verify, the result of deltas is read back before it gets its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import zerotools
from harness.stores.trouble import Call
from tests.io.stores.far import troubled
from tests.ops.delta.pairs import loaded, stepped, weights, write_model
from zerotools.io.output.manifest_path import sidecar_of_path
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.staging import partial_of
from zerotools.public.progress import ProgressUpdate

MODEL = "model.safetensors"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Models A and B, and their delta."""
    a = write_model(tmp_path / "a", weights())
    b = write_model(tmp_path / "b", stepped(weights(), 0.02), vocab_size=7)
    zerotools.delta(a, b, tmp_path / "ab.delta")
    return a, b, tmp_path / "ab.delta"


class DamageOnceWritten:
    """Flips a bit of a file as soon as all bytes of tensors are written, and before they are read
    back."""

    def __init__(self, path: Path, at: int) -> None:
        self.path, self.at, self.is_done = path, at, False

    def __call__(self, update: ProgressUpdate) -> None:
        if not self.is_done and 2 * update.done >= update.total:
            assert 2 * update.done == update.total
            self.path.write_bytes(flipped(self.path.read_bytes(), self.at))
            self.is_done = True


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def test_the_output_has_its_digests(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    a, b, delta = pair
    out = tmp_path / "out"
    done = zerotools.apply(a, delta, out, verify=True)
    assert loaded(out) == loaded(b)
    assert (done.verified, done.manifest) == (True, sidecar_of_path(out))
    verification = zerotools.verify(out)
    assert verification.is_whole
    assert verification.against is not None


def test_a_change_in_place_is_read_back(pair: tuple[Path, Path, Path]) -> None:
    a, b, delta = pair
    done = zerotools.apply(a, delta, verify=True)
    assert loaded(a) == loaded(b)
    assert (done.verified, done.manifest) == (True, None)
    assert MODEL in json.loads((a / MARKER).read_text())["files"]


@pytest.mark.parametrize(
    ("file", "at", "said"),
    [
        (MODEL, -1, r"model\.safetensors differs .*: block \d of .* has another digest"),
        (MODEL, 9, r"model\.safetensors differs .*, near byte 0"),
        ("config.json", 3, r"config\.json differs .*, near byte 0"),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_flipped_bit_keeps_the_output_from_its_name(
    pair: tuple[Path, Path, Path],
    tmp_path: Path,
    file: str,
    at: int,
    said: str,
    in_place: bool,
) -> None:
    a, _, delta = pair
    before, out = loaded(a), tmp_path / "out"
    damage = DamageOnceWritten(partial_of(a if in_place else out) / file, at)
    with pytest.raises(zerotools.BadFile, match=said):
        zerotools.apply(a, delta, None if in_place else out, verify=True, progress=damage)
    assert damage.is_done
    assert loaded(a) == before
    assert not out.exists()


def test_objects_are_read_back(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, delta = pair
    with troubled(monkeypatch) as (store, proxy):
        done = zerotools.apply(a, delta, "gs://checkpoints/out", verify=True)
        assert done.verified
        assert zerotools.diff("gs://checkpoints/out", b).is_equal
        marker = json.loads(store.get(f"out/{MARKER}"))
        assert all("digest" in each for each in marker["files"].values())

        damaged: list[bytes] = []

        def damage() -> None:
            if f"bad/{MODEL}" in store.sizes("bad/") and not damaged:
                damaged.append(flipped(store.get(f"bad/{MODEL}"), -1))
                store.put(f"bad/{MODEL}", damaged[0])

        proxy.add(Call(damage), kind="list", times=20)
        with pytest.raises(zerotools.BadFile, match="has another digest than the delta records"):
            zerotools.apply(a, delta, "gs://checkpoints/bad", verify=True)
        assert not [name for name in store.sizes("bad/") if name.endswith(MODEL)]


def test_a_part_is_not_the_whole_output(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    a, _, delta = pair
    with pytest.raises(zerotools.BadRequest, match=r"run zerotools verify .* when all parts"):
        zerotools.apply(a, delta, tmp_path / "out", part="1/2", verify=True)
