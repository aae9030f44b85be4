"""The supervisor: the parent process of one attempt's ranks. It needs neither the daemon nor any
package outside of the standard library.

The daemon starts it as `python -I -S entry.py RUN_DIR`. All its settings are in
`RUN_DIR/attempt.json`.
"""
