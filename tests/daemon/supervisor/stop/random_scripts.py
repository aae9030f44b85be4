"""Shell scripts of random shape, whose programs wait for a stop."""

from __future__ import annotations

import random

_AROUND = ("{}; $T after", "{} && $T after", "{} || $T after", "({}; $T after)", "{{ {}; }}")
_LOOPS = (
    "for i in 1 2; do {}; done",
    "while :; do {}; done",
    "until ! :; do {}; $T after; done",
    "if {}; then $T after; else $T after; fi",
    "case x in x) {};; esac",
    "if ! {{ {}; }}; then $T after; fi",
)
_NESTED = ("sh -c '{}; $T after'", "bash -c '{}'", "exec sh -c '{}; :'", "trap '' TERM; {}")


def a_script(seed: int) -> tuple[str, tuple[str, ...]]:
    """A script, and the programs that run in it at once until somebody stops them. `$T after` never
    begins, unless something goes on after a stop."""
    pick = random.Random(seed)
    names = tuple(f"p{number}" for number in range(pick.randint(1, 3)))
    words = [_program(name, pick) for name in names]
    script = words.pop()
    for word in words:
        script = f"{word} & {_wrapped(script, pick)}"
        if pick.random() < 0.5:
            script = f"({script}; wait); $T after"
    for _ in range(pick.randint(1, 4)):
        script = _wrapped(script, pick)
    # Some shells become their last command (exec), and what runs beside it is its affair then.
    return f"{script}; $T after", names


def _program(name: str, pick: random.Random) -> str:
    word = f"$T {name} {pick.choice(('', '', '3'))}".strip()
    return pick.choice(("{}", "{}", "{} | cat", "{} 2>&1 | tee log", "env {}", "nice {}")).format(
        word
    )


def _wrapped(script: str, pick: random.Random) -> str:
    around = pick.choice((*_AROUND, *_LOOPS, *_NESTED))
    if "'" in script and "'" in around:
        return f"{{ {script}; }}; $T after"
    return around.format(script)
