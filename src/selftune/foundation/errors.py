"""Errors with an object for each kind of mistake, so that no caller has to read a message.

Messages never contain the password of a URL, because people send messages to others.
"""

from typing import Any

from .safe_text import without_passwords


class ArgumentError(ValueError):
    """An argument has a value that does not fit; the message is "argument: expected …, got …".

    The parts of the message are attributes: `argument` is the name of the argument, `expected` says which values fit,
    `got` describes the given value, and `hint`, which may be empty, says what to do.

    !!! Example

        >>> import selftune as st
        >>> try:
        ...     st.Ball(radius=-1.0)
        ... except st.ArgumentError as error:
        ...     print(error)
        ...     print(error.argument, "|", error.expected, "|", error.got)
        radius: expected a finite number > 0, got -1.0
        radius | a finite number > 0 | -1.0
    """

    def __init__(self, argument: str, expected: str, got: str, hint: str = ""):
        got, hint = without_passwords(got), without_passwords(hint)
        super().__init__(argument, expected, got, hint)  # the arguments of a copy that pickle makes
        self.argument, self.expected, self.got, self.hint = argument, expected, got, hint

    @property
    def mistake(self) -> str:
        """The message without the name of the argument."""
        return f"expected {self.expected}, got {self.got}{self.hint and f'; {self.hint}'}"

    def __str__(self) -> str:
        return f"{self.argument}: {self.mistake}"


class InputError(Exception):
    """An error that the user can fix. The message says where, what is wrong and what to do; no traceback is shown."""

    def __init__(self, *args: Any):
        super().__init__(*(without_passwords(part) if isinstance(part, str) else part for part in args))


class StoreError(InputError):
    """A folder or file that cannot be used as requested; the message says which one, why, and what to do."""


class OverwriteError(StoreError):
    """Files that would be lost. `problem` says which ones; `permission` says how the user can allow it."""

    def __init__(self, problem: str, permission: str = "give overwrite=True"):
        super().__init__(problem, permission)
        self.problem, self.permission = self.args

    def __str__(self) -> str:
        return f"{self.problem}; choose another folder, or {self.permission}"


def in_one_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    return without_passwords(f"{type(error).__name__}: {error}".split("\n", 1)[0][:500])


def cause(error: BaseException) -> BaseException | None:
    """Return an error for `raise … from`, which a traceback shows; None if its message contains a password."""
    return error if str(error) == without_passwords(str(error)) else None
