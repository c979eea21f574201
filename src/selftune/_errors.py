class InputError(Exception):
    """What is the user's to mend: the message says where, what is wrong and what to do; no traceback is needed."""
