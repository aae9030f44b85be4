"""Other readers of the same bytes. Where both accept, both find the same; where only ours does, one
of the reasons that its module lists holds; where only theirs does, ours says what it refuses."""
