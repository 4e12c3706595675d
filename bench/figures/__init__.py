"""Pictures in the report: one file a figure."""
