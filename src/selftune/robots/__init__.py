"""Robots with a model, a policy whose gains can be tuned, and a plant that the model does not know (extra `robots`)."""
