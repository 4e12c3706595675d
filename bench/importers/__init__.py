"""Results of other programs that can be compared: one file a format."""
