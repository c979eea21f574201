"""A long body of a C function in parts, which are functions of their own.

A compiler's time grows much faster than the length of a function, mostly while it assigns registers. So the statements
of a long body become several functions. The variables that more than one of them uses are members of a struct.
"""

import re
from collections.abc import Iterable, Sequence

from .templates import wrap

LONGEST = 500
"""The number of statements of one part."""
KEPT = "kept"
"""The name of the pointer to the struct."""
ATTRIBUTES = """\
#ifdef __GNUC__
#define SELFTUNE_PART __attribute__((noinline))
#else
#define SELFTUNE_PART
#endif
#if defined(__GNUC__) && !defined(__clang__)
#define SELFTUNE_LOOPS __attribute__((noinline, optimize("O3")))
#define SELFTUNE_LOOP_PART __attribute__((noinline, optimize("O2")))
#else
#define SELFTUNE_LOOPS
#define SELFTUNE_LOOP_PART SELFTUNE_PART
#endif
"""
"""Parts stay functions of their own. Loops are optimized more than long functions are; this does not change their
results. Loops of parts have no -O3: with -march=x86-64-v3, gcc 12 then computes wrong choices between two arrays, which
tests/native/test_arrays_in_memory.py found."""
_DECLARATION = re.compile(r"(static )?(const )?(\w+) (\*?\w+)((?:\[\d+\])?)( = .*)?;", re.S)
_NAME = re.compile(r"(?<![\w.>])[A-Za-z_]\w*")


def in_parts(
    name: str, loads: Sequence[str], blocks: Sequence[Sequence[str]], stores: dict[str, list[str]]
) -> tuple[list[str], list[str], dict[str, list[str]], dict[str, str]]:
    """Return loads, statements, stores and helpers of a body whose statements are functions.

    **Arguments:** `name`, the prefix of all new names; `blocks`, the statements, of which those in one block stay
    together; `loads` and `stores` as in `Body`.
    """
    divided = list(_parts(blocks))
    parts = [lines for _, lines in divided]
    stored = [line for group in stores.values() for line in group]
    homes: dict[str, int] = {}
    kinds: dict[str, tuple[str, str]] = {}
    users: dict[str, set[int]] = {}
    for part, lines in enumerate([*parts, [*loads, *stored]]):
        for line in lines:
            if found := _DECLARATION.fullmatch(line):
                word = found[4].lstrip("*")
                homes[word] = part
                kinds[word] = f"const {found[3]} *" if found[4] != word else found[3], found[5]
            for word in _NAME.findall(line):
                users.setdefault(word, set()).add(part)
    shared = {word for word, part in homes.items() if users[word] - {part}}

    def in_struct(lines: Iterable[str], names: set[str]) -> list[str]:
        """Return the lines with the given variables in the struct."""
        out = []
        for line in lines:
            found = _DECLARATION.fullmatch(line)
            if found and (word := found[4].lstrip("*")) in names:
                if not found[6]:
                    continue
                line = f"{word}{found[6]};"
            out.append(_NAME.sub(lambda word: f"{KEPT}->{word[0]}" if word[0] in names else word[0], line))
        return out

    members = "\n".join(f"    {kinds[word][0]} {word}{kinds[word][1]};" for word in homes if word in shared)
    helpers = {"attributes": ATTRIBUTES, f"{name}_kept": f"typedef struct {{\n{members}\n}} {name}_kept;\n"}
    statements = []
    for part, lines in enumerate(parts):
        here = [word for word in shared if part in users[word]]
        if _has_loop(lines):
            names, before, after = set(here), [], []
        else:
            # All reads come first and all writes last: a compiler compares each read with the writes before it.
            names = {word for word in here if kinds[word][1] or kinds[word][0].endswith("*")}
            numbers = sorted(set(here) - names)
            before = [f"const {kinds[word][0]} {word} = {KEPT}->{word};" for word in numbers if homes[word] != part]
            after = [f"{KEPT}->{word} = {word};" for word in numbers if homes[word] == part]
        body = [*before, *in_struct(lines, names), *after]
        head = f"static {divided[part][0]} void {name}_part_{part}({name}_kept *{KEPT})"
        helpers[f"{name}_part_{part}"] = "\n".join([head, "{", *wrap(body, 4), "}", ""])
        statements.append(f"{name}_part_{part}({KEPT});")
    begin = [f"{name}_kept all_kept;", f"{name}_kept *const {KEPT} = &all_kept;"]
    return (
        begin + in_struct(loads, shared),
        statements,
        {group: in_struct(lines, shared) for group, lines in stores.items()},
        helpers,
    )


def _parts(blocks: Sequence[Sequence[str]]) -> Iterable[tuple[str, list[str]]]:
    """Yield the attribute and the statements of each part. Short loops and other statements are apart, and a long loop
    is a part by itself."""
    part: list[str] = []
    of_loops = False
    for block in blocks:
        has_loop = _has_loop(block)
        is_long = has_loop and len(block) > LONGEST // 10
        if part and (is_long or has_loop != of_loops or len(part) + len(block) > LONGEST):
            yield "SELFTUNE_LOOP_PART" if of_loops else "SELFTUNE_PART", part
            part = []
        if is_long:
            yield "SELFTUNE_LOOP_PART", list(block)
        else:
            part.extend(block)
            of_loops = has_loop
    if part:
        yield "SELFTUNE_LOOP_PART" if of_loops else "SELFTUNE_PART", part


def _has_loop(lines: Iterable[str]) -> bool:
    return any(line.startswith("for ") for line in lines)
