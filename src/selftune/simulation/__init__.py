"""`simulate` and the `Run` that it returns."""
