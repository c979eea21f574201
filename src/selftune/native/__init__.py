"""The native engine: a step, or the whole closed loop, as compiled C."""
