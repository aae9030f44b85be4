"""One output written by several runs, on one machine or on many: what each of them writes."""
