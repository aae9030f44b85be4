"""Files of training data as a job file names them.

token_files                   token ids
documents                     documents to train on, and the files that contain them
example_files, conversations  examples to fine-tune on
rows                          the records of both: json_objects, csv_rows, columnar_files
values                        values of a record, and the words of messages for them
utf8                          messages on a file that is not UTF-8

Standard library only, except columnar_files, which imports pyarrow when it reads. Imports
`jobs.tables`.
"""
