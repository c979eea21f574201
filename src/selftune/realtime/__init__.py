"""`Agent`: the controller in real time, one sample at a time."""
