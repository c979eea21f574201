"""The site: `make docs` builds it, and `make docs-serve` shows it."""
