"""Many runs: designs, plans, programs, clusters, and the comparison of settings."""
