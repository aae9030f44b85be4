"""What a range server gives, against reading the file that consolidate writes."""
