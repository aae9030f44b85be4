"""Options that several commands share, and the values that a command gets from them.

click_options       click options with groups and types; --json, --socket and other shared ones
submission_options  options of submit: Slurm, arrays, waiting conditions
import_options      options that import configs of other launchers

Imports `cli.output`.
"""
