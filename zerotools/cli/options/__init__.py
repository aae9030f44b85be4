"""Options that several commands share, and the values that a command gets from them.

click_options       declares click options with groups and types, and options of many commands
submission_options  declares the options of submit: Slurm, arrays, waiting conditions
import_options      declares the options that import configs of other launchers

Imports `cli.output`.
"""
