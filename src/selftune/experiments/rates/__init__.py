"""The paper's rates and comparisons as experiments: one file an experiment, their figures and their page.

- `growth`: the local regret and the errors grow with T as the main theorem says.
- `finding`: the form of what an experiment finds.
"""
