"""Into how many parts the sequences of a step are divided."""

from __future__ import annotations

import pytest

from zerotools.jobs.imports.reading.batch_size import sequence_divisor
from zerotools.jobs.imports.reading.key_claims import Claims


@pytest.mark.parametrize(
    ("ranks", "tensor", "parts", "place"),
    [
        (4, None, 4, "here"),
        (4, 1, 4, "here"),
        (4, 2, 2, "here, divided by 2 tensor ranks"),
        (4, 3, 4, "here"),  # refused where the key is checked
        (None, 2, None, ""),
    ],
)
def test_tensor_ranks_share_their_sequences(
    ranks: int | None, tensor: int | None, parts: int | None, place: str
) -> None:
    claims = Claims()
    for key, value in (("gpus", ranks), ("zero.tensor_ranks", tensor)):
        if value is not None:
            claims.add(key, value, "here")
    found = sequence_divisor(claims)
    assert (None if found is None else found.value) == parts
    assert found is None or found.place == place
