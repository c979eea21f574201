"""Result codes, which say how a run or a step ended, and their messages; for Python and for the exported C."""

OK = 0
DIVERGED = 1
NON_FINITE = 2
RAISED = 3
"""Only in a sweep: the task or the setting of this run raised an error."""
NOT_RUN = -1
"""Only in stored data: this run was not computed."""

WORDS = {
    OK: "ok",
    DIVERGED: "the state diverged",
    NON_FINITE: "a number stopped being finite",
    RAISED: "the task raised an error",
    NOT_RUN: "was not run",
}


def describe_failure(code: int, step: int) -> str:
    """Return the message for a run that failed at `step`."""
    return f"{WORDS[code]} at step {step}"
