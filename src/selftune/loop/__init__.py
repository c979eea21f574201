"""A control loop made of ready pieces: a plant, a policy, a cost and a reference."""
