"""What is looked for in a study; `bench.findings` holds the table that says what to do about it."""
