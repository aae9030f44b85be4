"""Makes a release: from a clean checkout to signed files and a tag, without an upload.

`scripts/release` runs it. All steps run in a temporary clone of the repository. If all of them
succeed, and this is no dry run, the two commits and the tag are fetched from the clone, and the
files are put into `dist`.

- `source_edits`   edits the version in the source, before and after a release
- `building`       builds a wheel and a source distribution twice, and compares the bytes
- `interpreters`   finds interpreters of all Python versions with which the files are tested
- `inspecting`     checks the content of the files, and the commands after their installation
- `signing`        writes digests and signatures
"""
