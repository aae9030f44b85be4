"""Output that is written to an object store, from any source, without a disk in between.

destination   the output of a command: to a store, or to a disk
upload        a conversion with files that are made and sent in parallel
file_stream   the bytes of one file in order, with checksums that precede their data
upload_memory the division of the budget
"""
