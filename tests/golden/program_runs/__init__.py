"""Other training programs, whose own writers make golden run directories: README.md says how."""
