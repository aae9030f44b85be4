"""The name of the record next to objects while an output is written to a store."""

WRITING = ".zerotools-writing.json"
