"""Readers of training data files that a job file names.

token_files             reads the headers of files of token ids
examples_and_documents  reads examples to fine-tune on, and documents
conversations           reads the conversation in an example
record_files            reads the records of a file: CSV, Parquet, Arrow, or JSON (json_objects)

Standard library only, except that record_files imports pyarrow to read Parquet and Arrow. Imports
`jobs.jobfile_tables`.
"""
