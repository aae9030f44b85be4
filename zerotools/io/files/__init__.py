"""Files as bytes: opened safely, checked for changes, read and written at offsets.

open_source            a file or an object that is open for reading
regular_files          opens files of checkpoints, after a check that they are regular files
open_files             caches open files; reads and writes at offsets from many threads
copy_bytes             copies a range of bytes from an open file to another
source_stamps          records the files that an output is made from, and checks them for changes
directory_entries      names in a directory; a check of names that a checkpoint contains
exclusive_directory    makes a directory, or a file, that only this run can write
metadata_memory_limit  a limit on the memory for headers and pickles
read_json              reads a JSON file in bounded memory
tolerated_damage       a context in which readers record damage and continue
mounts                 finds the mount point of a path
optional_packages      packages that only some commands need, and how to install them

Imports `core` only.
"""
