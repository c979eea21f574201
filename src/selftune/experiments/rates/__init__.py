"""The paper's rates and comparisons as experiments: one file for each experiment, the figures and the page.

- `growth`: how the local regret and the errors grow with T, compared with the main theorem.
- `gradient_errors`: Theorem 2 and its corollary.
- `truncation`: GAPS against M-GAPS.
- `switches`: the cost of a switch of a*.
- `adversary`: how tight Theorem 1 is.
- `run`: runs the experiments and stores their findings; `finding`: the common form of a finding.
"""
