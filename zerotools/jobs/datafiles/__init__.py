"""Readers of training data files that a job file names.

token_files    token ids
example_files  examples to fine-tune on, and documents
conversations  the conversation in an example
record_files   the records of a file: CSV, Parquet, Arrow, or JSON (json_objects)

Standard library only, except that record_files imports pyarrow to read Parquet and Arrow. Imports
`jobs.jobfile_tables`.
"""
