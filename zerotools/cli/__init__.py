"""Layer 5: the command line. Commands print tables for people, and JSON with `--json` for programs.
Their exit codes are documented.
"""
