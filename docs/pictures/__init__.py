"""The drawings and the moving picture of the README and the pages. `make pictures` writes them to docs/figures."""
