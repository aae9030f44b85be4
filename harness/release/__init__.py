"""`scripts/release`: from a clean checkout to signed files and a tag, without uploading anything.

All steps work in a scratch clone. If all of them succeed, and it is no dry run, the two commits and
the tag are fetched from there, and the files are put into `dist`.

- `source_edits`   edits the version in the source, before and after a release
- `building`       builds a wheel and a source distribution twice, with equal bytes
- `interpreters`   finds interpreters of the Python versions that the files are tried with
- `inspecting`     checks the content of the files, and the commands after their installation
- `signing`        digests and signatures
"""
