"""Where the golden checkpoints lie: files from real runs, kept for ever."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"

# A job of zerotools 0.1.0: a tied Llama of 7,088 parameters, ZeRO-3 on 2 ranks, bf16, step 3.
JOB = GOLDEN / "zerotools-0.1.0" / "step-00000003"
