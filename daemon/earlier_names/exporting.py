"""Run `children/export.py`. Plans of running attempts call it by this earlier name."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parent / "children" / "export.py"), run_name="__main__")
