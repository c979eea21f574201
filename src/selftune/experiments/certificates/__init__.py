"""Problems on which `selftune verify` checks the theorems."""
