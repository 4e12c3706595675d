"""Formats that a study is written in for other programs: one file a format."""
