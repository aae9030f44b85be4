"""Run `children/export.py`, whose earlier name is in the plans of attempts that still run."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parent / "children" / "export.py"), run_name="__main__")
