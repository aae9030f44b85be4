"""Layer 5: the command line. Tables for people, `--json` for programs, documented exit codes."""
