"""The layers that a pipeline stage can have besides those that its parameters name.

A parameter is called `LAYER.NAME`, and a tied one, which several layers share,
`tied_modules.KEY.NAME`: its layers are not named. Stages are cut one after another, so they lie
between the named layers of the stage before and of the stage after.

    stage 0 trains 1.weight, 2.weight and tied_modules.embed.weight: its tied layer is 0
    stage 1 trains 3.weight and tied_modules.embed.weight: its tied layer is 4 or above

Source: DeepSpeed `runtime/pipe/module.py`: `_build`, `save_state_dict`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

TIED = re.compile(r"tied_modules\.[^.]+\.(?P<name>.+)")
PLAIN = re.compile(r"(?P<layer>\d+)\..+")


def layers_of_ties(trained: Sequence[Collection[str]], names: Iterable[str]) -> list[set[int]]:
    """Return for each stage the numbers of the layers that may hold its tied parameters. `trained`
    are the parameters of each stage in order, `names` everything that layer files hold, by
    `LAYER.NAME`."""
    plain = [
        [int(match["layer"]) for name in own if (match := PLAIN.fullmatch(name))] for own in trained
    ]
    numbers = {int(match["layer"]) for name in names if (match := PLAIN.fullmatch(name))}
    found = []
    for stage, own in enumerate(plain):
        low = max((n for earlier in plain[:stage] for n in earlier), default=-1)
        high = min((n for later in plain[stage + 1 :] for n in later), default=None)
        found.append(
            {n for n in numbers if low < n and (high is None or n < high) and n not in own}
        )
    return found
