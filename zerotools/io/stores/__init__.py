"""Checkpoints in object stores, as paths and open sources like those of this machine.

store_path     a path that is an object, or a directory of objects
addresses      a path of what the user wrote, which may be a URL
remote_source  an object that is open to be read: small reads by blocks, large ones in parallel
neighbours     files that are about to be read, as others like them were
listings       what lies where, of as few listings as will do, kept for the process
connections    the store that a path lies in
far_store      what a store is asked: list, read a range, put, upload, delete
bucket         S3, Google Cloud Storage and Azure Blob Storage, by obstore
indexed_files  files of a directory that cannot be listed, by an index in it
web_files      files of an HTTP server, by obstore
hub_files      a repository of the Hugging Face Hub, by huggingface_hub
failures       what a store answered, in a sentence without credentials
"""
