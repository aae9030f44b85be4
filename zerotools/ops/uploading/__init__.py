"""Output that is written to an object store, from a source anywhere, and by way of no disk.

destination   whatever a command writes: to a store, or to a disk
upload        a conversion whose files are made and sent side by side
file_stream   the bytes of one file in order, with the checksums that lie before what they are of
upload_memory how the budget is shared
"""
