"""The controller, its guard, and one step of the closed loop."""
