"""One output written by several runs, on one machine or on many: the share of each."""
