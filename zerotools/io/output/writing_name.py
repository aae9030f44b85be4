"""The name of the record that lies beside objects while an output is written to a store."""

WRITING = ".zerotools-writing.json"
