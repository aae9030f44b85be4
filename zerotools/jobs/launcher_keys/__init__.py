"""Tables of what other launchers' configs may say: DeepSpeed's JSON by release, accelerate's YAML.

Data only. Imports no other room of `jobs`.
"""
