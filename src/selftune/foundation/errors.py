class InputError(Exception):
    """What is the user's to mend: the message says where, what is wrong and what to do; no traceback is needed."""


class StoreError(InputError):
    """A folder or file that cannot be used as asked; the message says which, why, and what to do."""
