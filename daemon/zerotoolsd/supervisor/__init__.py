"""The parent process of one attempt's ranks. It needs the standard library only, and no daemon.

Started as `python -I -S entry.py RUN_DIR`; everything else is in `RUN_DIR/attempt.json`.
"""
