"""Many runs: designs, plans, executors, and the comparison of settings."""
