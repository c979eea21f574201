"""The paper's rates and comparisons as experiments: one file an experiment, with their figures and their page.

- `growth`: the local regret and the errors grow with T as the main theorem says.
- `gradient_errors`: Theorem 2 and its corollary.
- `truncation`: GAPS against M-GAPS.
- `switches`: the cost of a switch of a*.
- `adversary`: how tight Theorem 1 is.
- `run`: all of them, and what is kept of them; `finding`: the form of what an experiment finds.
"""
