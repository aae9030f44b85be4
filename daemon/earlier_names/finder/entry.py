"""Run `children/checkpoint_finder/entry.py`. Plans of running attempts call it by this earlier
path.
"""

import runpy
from pathlib import Path

ENTRY = Path(__file__).parents[1] / "children" / "checkpoint_finder" / "entry.py"
runpy.run_path(str(ENTRY), run_name="__main__")
