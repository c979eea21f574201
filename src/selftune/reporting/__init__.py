"""Parts of figures and pages that every experiment uses."""
