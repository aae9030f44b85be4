"""Configs as they come off a web page: what `--lenient` mends, before anything is read.

Each mender keeps every line where it was, so that places in the result are places in the file.
"""
