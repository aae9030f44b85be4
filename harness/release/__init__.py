"""`scripts/release`: from a clean checkout to signed files and a tag, without uploading anything.

Everything happens in a scratch clone. Where all of it went well, and it was no dry run, the two
commits and the tag are fetched from there, and the files are left in `dist`.

- `source_edits`   the texts that name the version, before and after a release
- `building`       a wheel and a source distribution, twice, with equal bytes
- `interpreters`   of the versions of Python that the files are tried with
- `inspecting`     what must be in them, and what they do once they are installed
- `signing`        digests and signatures
"""
