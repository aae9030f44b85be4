from __future__ import annotations

import pytest

from zerotools.ops.serving.http_answers import NotSatisfiable, WantedBytes, etag_matches, wanted_of

WHOLE = WantedBytes(0, 100)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (None, WHOLE),
        ("bytes=0-0", WantedBytes(0, 1, True)),
        ("bytes=10-19", WantedBytes(10, 20, True)),
        ("bytes=90-", WantedBytes(90, 100, True)),
        ("bytes=90-1000", WantedBytes(90, 100, True)),
        ("bytes=-5", WantedBytes(95, 100, True)),
        ("bytes=-500", WantedBytes(0, 100, True)),
        ("bytes=0-1,5-6", WHOLE),
        ("bytes=-", WHOLE),
        ("bytes=9-3", WHOLE),
        ("lines=1-2", WHOLE),
        ("bytes=a-b", WHOLE),
    ],
)
def test_ranges(header: str | None, wanted: WantedBytes) -> None:
    assert wanted_of(header, 100) == wanted


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_ranges_behind_the_end(header: str) -> None:
    with pytest.raises(NotSatisfiable):
        wanted_of(header, 100)


def test_etags() -> None:
    assert etag_matches('"a", W/"b"', '"b"')
    assert etag_matches("*", '"b"')
    assert not etag_matches('"bb"', '"b"')
    assert not etag_matches(None, '"b"')
