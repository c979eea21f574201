"""The native engine, which compiles a step or the whole closed loop to C."""
