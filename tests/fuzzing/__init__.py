"""Coverage-guided fuzzing of everything that reads untrusted files.

docs/contributing/write-tests.md describes how to run it.

targets                    the table: what is fuzzed, by name
pickles, zips, headers     one target each: bytes in, AssertionError out where something is wrong
metadata, databases
checkpoints, jobs
configs
peers                      what another library makes of the same bytes
run                        atheris: one target, for some minutes
corpus                     the seeds, and what was found once
"""
