"""Regular expressions that name tensors: their syntax (`pattern_syntax`), and what they match
(`name_patterns`), in time that no pattern can stretch.
"""
