"""The command `selftune`: one file for each command."""
