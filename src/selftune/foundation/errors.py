class InputError(Exception):
    """An error that the user can fix. The message says where, what is wrong and what to do; no traceback is shown."""


class StoreError(InputError):
    """A folder or file that cannot be used as requested; the message says which one, why, and what to do."""


def in_one_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".split("\n", 1)[0][:500]
