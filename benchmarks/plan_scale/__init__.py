"""What the plan of a conversion costs that is far larger than the machine."""
