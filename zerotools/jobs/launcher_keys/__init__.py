"""Tables of the keys in other launchers' configs: DeepSpeed's JSON by release, accelerate's YAML.

Only data. Imports no other package of `jobs`.
"""
