"""Robots: a model, a policy with tunable gains, and a plant that the model does not know (extra `robots`)."""
