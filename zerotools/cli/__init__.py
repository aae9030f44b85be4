"""Floor 4: the command line. Tables for people, `--json` for programs, documented exit codes."""
