"""What is to be controlled: `System`, constraints, scenarios and noise."""
