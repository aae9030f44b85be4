"""Checkpoints in object stores, as paths and open sources like local ones.

store_path     a path that is an object, or a directory of objects
addresses      a path from the user's text, which may be a URL
remote_source  an object open for reading: small reads by blocks, large ones in parallel
neighbours     prefetching of files that are similar to those read before
listings       the contents of directories, with few listings, cached for the process
connections    the store that a path lies in
far_store      the interface of a store: list, read a range, put, upload, delete
bucket         S3, Google Cloud Storage and Azure Blob Storage, by obstore
indexed_files  files of a directory that cannot be listed, by an index in it
web_files      files of an HTTP server, by obstore
hub_files      a repository of the Hugging Face Hub, by huggingface_hub
failures       errors of a store, in a sentence without credentials
"""
