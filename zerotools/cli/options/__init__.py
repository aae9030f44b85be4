"""Options that several commands share, and the values that a command gets from them.

click_options       click options with groups and types; options that many commands have (--json)
submission_options  options of submit: Slurm, arrays, waiting conditions
import_options      options that import configs of other launchers

Imports `cli.output`.
"""
