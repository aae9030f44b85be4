"""Write an output to an object store, without a copy on a disk.

write_output   write to a disk or to a store, by the path of the output
upload         make and send the files in parallel
upload_memory  divide the memory budget between making and sending
"""
