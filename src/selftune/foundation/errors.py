class InputError(Exception):
    """An error that the user can fix. The message says where, what is wrong and what to do; no traceback is shown."""


class StoreError(InputError):
    """A folder or file that cannot be used as requested; the message says which one, why, and what to do."""
