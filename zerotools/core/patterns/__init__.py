"""Regular expressions that name tensors: their syntax (`pattern_syntax`) and their matching
(`name_patterns`), in a time that no pattern can extend."""
