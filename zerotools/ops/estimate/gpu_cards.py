"""The memory of GPU cards, looked up by name or by advertised size.

A card "of 24 GB" may have 24,564 MiB, 24,576 MiB, or 23,028 MiB if error correction takes a
sixteenth. The table has the total that NVML reports (`nvmlDeviceGetMemoryInfo`, the number after
the slash in nvidia-smi). The numbers for H100, A100, A10, L40S, L4 and T4 are from
https://github.com/modal-labs/modal-client/pull/2797, and the other numbers are from outputs of
nvidia-smi in public repositories and issues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.core.errors import BadRequest

MIB, GIB = 1 << 20, 1 << 30
_LIKE_ECC = 15 / 16
"""The usable share of GDDR memory if error correction is on, as on A10 and L40S."""
_MOST_GIGABYTES = 400
"""The largest number without a unit that is read as GB. A larger one is a card's name, such as
3090.
"""
MOST_GPUS = 1 << 16
MOST_GPU_MEMORY = 1 << 40
THIS_MACHINE = "this machine"

CARDS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "GTX 1080 Ti": (11, 11_264),
        "RTX 2080 Ti": (11, 11_264),
        "RTX 3060": (12, 12_288),
        "RTX 3080": (10, 10_240),
        "RTX 3090": (24, 24_576),
        "RTX 3090 Ti": (24, 24_564),
        "RTX 4060 Ti 16GB": (16, 16_380),
        "RTX 4070": (12, 12_282),
        "RTX 4070 Ti": (12, 12_282),
        "RTX 4070 Ti Super": (16, 16_376),
        "RTX 4080": (16, 16_376),
        "RTX 4090": (24, 24_564),
        "RTX 5090": (32, 32_607),
        "RTX A4000": (16, 16_376),
        "RTX A6000": (48, 49_140),
        "RTX 6000 Ada": (48, 49_140),
        "RTX PRO 6000": (96, 97_887),
        "T4": (16, 15_360),
        "L4": (24, 23_034),
        "A10": (24, 23_028),
        "A10G": (24, 23_028),
        "L40S": (48, 46_068),
        "V100 16GB": (16, 16_384),
        "V100 32GB": (32, 32_768),
        "A100 40GB": (40, 40_960),
        "A100 80GB": (80, 81_920),
        "H100": (80, 81_559),
        "H20": (96, 97_871),
        "GH200": (96, 97_871),
        "H200": (141, 143_771),
        "B200": (180, 183_359),
    }
)
"""The advertised size of each card in GB, and its memory in MiB."""

_COUNTED = re.compile(r"\s*(\d{1,6})\s*(?:[x\u00d7*]\s*(.+))?", re.IGNORECASE | re.DOTALL)
_SIZE = re.compile(r"(\d{1,4}(?:\.\d+)?)\s*(g|gb|gib|m|mb|mib)?", re.IGNORECASE)
_MAKER = re.compile(r"\b(nvidia|geforce|tesla|quadro|sxm\d?|pcie|hbm\d?e?|blackwell)\b")


@dataclass(frozen=True)
class Cards:
    """`count` GPUs, each with `memory` bytes. None stands for the number or the memory of this
    machine's GPUs.

    `note` is a sentence on the source of the memory size.
    """

    count: int | None = None
    memory: int | None = None
    note: str | None = None


def cards_of(text: str | int) -> Cards:
    """Parse a user's text for GPUs: 4, 4x24, "2xRTX 4090", 8xH100, 2x24GiB, "this machine".

    A size without a unit or in GB is the advertised size of a card. It stands for the smallest
    memory of all cards of that size. A size in GiB or MiB is exact.

    Raises:
        BadRequest: the text has another form, or cards with this name exist in several memory
            sizes.
    """
    given = str(text).strip()
    if given.lower() == THIS_MACHINE:
        return Cards()
    match = _COUNTED.fullmatch(given)
    if match is None:
        return Cards(1, *_memory(given))
    count = int(match[1])
    if not 1 <= count <= MOST_GPUS:
        raise BadRequest(f"--gpus {given}: {count} is not in the range 1 to {MOST_GPUS}")
    return Cards(count) if match[2] is None else Cards(count, *_memory(match[2].strip()))


def _memory(name: str) -> tuple[int, str | None]:
    size = _SIZE.fullmatch(name)
    if size is None or (size[2] is None and float(size[1]) > _MOST_GIGABYTES):
        return _of_name(name)
    unit = (size[2] or "gb").lower()
    if unit in ("gib", "mib"):
        return _checked(bytes_of(name.replace(" ", "")), name), None
    if unit in ("m", "mb"):
        return _checked(bytes_of(f"{size[1]}MB"), name), None
    sold = float(size[1])
    known = {card: mib for card, (gigabytes, mib) in CARDS.items() if gigabytes == sold}
    if not known:
        memory = _checked(int(sold * GIB * _LIKE_ECC), name)
        return (
            memory,
            f"GPU memory: {memory / GIB:.1f} GiB, with 1/16 of {name} for error correction",
        )
    least = min(known, key=lambda card: known[card])
    said = f"{known[least] / 1024:.1f} GiB, the least that a card of {size[1]} GB has ({least})"
    return known[least] * MIB, f"GPU memory: {said}; name the card for its exact memory"


_SPELLINGS: tuple[Callable[[str, int], str], ...] = (
    lambda card, _: card,
    lambda card, sold: card.removesuffix(f"{sold}gb"),
    lambda card, sold: f"{card}{sold}gb",
    lambda card, sold: f"{card}{sold}g",
    lambda card, _: re.sub("^[rg]tx", "", card),
)
"""All spellings of a card: with or without the size, and without RTX."""


def _of_name(name: str) -> tuple[int, str | None]:
    wanted = _plain(name)
    found: dict[str, int] = {}
    for names in _SPELLINGS:
        found = found or {
            card: mib for card, (sold, mib) in CARDS.items() if names(_plain(card), sold) == wanted
        }
    if not found:
        known = ", ".join(CARDS)
        raise BadRequest(
            f"--gpus: {name!r} is not a known card; write its memory as in 2x24 or 2x24GiB, or "
            f"one of {known}"
        )
    if len(found) > 1:
        raise BadRequest(f"--gpus: {name!r} is ambiguous; name one of {', '.join(found)}")
    card, mib = found.popitem()
    return mib * MIB, f"GPU memory: {mib / 1024:.1f} GiB, as NVML reports for {card}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _MAKER.sub("", name.lower().replace("-", " ")))


def _checked(memory: int, name: str) -> int:
    if memory > MOST_GPU_MEMORY:
        raise BadRequest(
            f"--gpus: {name} is {memory / GIB:,.0f} GiB, and no GPU has more than "
            f"{MOST_GPU_MEMORY / GIB:,.0f} GiB; check the unit"
        )
    if memory < MIB:
        raise BadRequest(f"--gpus: {name} is less than 1 MiB; check the unit")
    return memory
