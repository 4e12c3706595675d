"""Commands of scalemark: one file a verb."""
