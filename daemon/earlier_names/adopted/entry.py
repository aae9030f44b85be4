"""Run `children/pid_watcher/entry.py`, as plans of attempts that still run ask for."""

import runpy
from pathlib import Path

ENTRY = Path(__file__).parents[1] / "children" / "pid_watcher" / "entry.py"
runpy.run_path(str(ENTRY), run_name="__main__")
