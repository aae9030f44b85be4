"""Run `children/checkpoint_finder/entry.py`, as plans of attempts that still run ask for."""

import runpy
from pathlib import Path

ENTRY = Path(__file__).parents[1] / "children" / "checkpoint_finder" / "entry.py"
runpy.run_path(str(ENTRY), run_name="__main__")
