"""Recorded runs of plants: files of several formats, and the rows that a loop can use."""
