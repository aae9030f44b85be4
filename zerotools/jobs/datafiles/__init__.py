"""Files of training data as a job file names them.

token_files                   token ids
documents                     documents to train on, and which files have such
example_files, conversations  examples to fine-tune on
rows                          what both are made of: json_objects, csv_rows, columnar_files
values                        values of a record, and the words of messages for them
utf8                          what to say of a file that is not UTF-8

Standard library only, but for columnar_files, which imports pyarrow where it reads. Imports
`jobs.tables`.
"""
