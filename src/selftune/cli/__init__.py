"""The command `selftune`: one file a command."""
