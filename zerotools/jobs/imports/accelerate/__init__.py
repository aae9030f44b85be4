"""accelerate's YAML, section by section, as claims on the keys of a job file.

Imports `imports.reading`, and not `imports.deepspeed`.
"""
