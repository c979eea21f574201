"""What is measured, against what. Speed is a ratio within one run; these are not tests."""
