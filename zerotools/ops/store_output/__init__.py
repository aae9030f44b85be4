"""Write an output directly to an object store, without a copy on a disk.

convert_into_store  make and send the files in parallel
upload_memory       divide the memory budget between making and sending
"""
