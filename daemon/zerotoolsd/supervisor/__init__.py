"""Floor 1: the parent of one attempt's ranks. Standard library only; it needs no daemon.

Started as `python -I -S entry.py RUN_DIR`; everything else is in `RUN_DIR/attempt.json`.
"""
