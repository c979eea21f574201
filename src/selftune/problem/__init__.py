"""The control problem: `System`, constraints, scenarios and noise."""
