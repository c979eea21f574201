"""Result codes, which say how a run or a step ended, and their messages; for Python and for the exported C."""

OK = 0
DIVERGED = 1
NON_FINITE = 2
RAISED = 3
"""Only in a sweep: the task or the setting of this run raised an error."""
SAFE = 4
"""Only of a step with a guard: the safe control replaced the control."""
OUTLIER = 5
"""Only of an observation: its innovation was an outlier."""
REPEATED = 6
"""Only of an observation: the observation of this step was used already."""
STUCK = 7
"""Only of a step with a guard: a sensor is stuck."""
OUT_OF_RANGE = 8
"""Only of a step with a guard: a measurement is outside the range of its sensor."""
NOT_RUN = -1
"""Only in stored data: this run was not computed."""

OF_STEPS = (OK, DIVERGED, NON_FINITE, SAFE, OUTLIER, REPEATED, STUCK, OUT_OF_RANGE)
"""The codes that one call of an agent, or of the exported C, can end with."""

WORDS = {
    OK: "ok",
    DIVERGED: "the state diverged",
    NON_FINITE: "a number stopped being finite",
    RAISED: "the task raised an error",
    SAFE: "the safe control is in use",
    OUTLIER: "the observation was an outlier",
    REPEATED: "the step was observed already",
    STUCK: "a sensor is stuck",
    OUT_OF_RANGE: "a measurement is outside the range of its sensor",
    NOT_RUN: "was not run",
}


def describe_failure(code: int, step: int) -> str:
    """Return the message for a run that failed at `step`."""
    return f"{WORDS[code]} at step {step}"
