"""Golden files, and beside them the programs that made them: a folder for each real tool."""
