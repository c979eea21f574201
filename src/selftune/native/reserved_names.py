"""Names that generated C must not use as its own."""

import re

C_AND_CPP = frozenset(
    re.findall(
        r"\w+",
        "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const "
        "const_cast consteval constexpr constinit continue decltype default delete do double dynamic_cast else enum "
        "explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not "
        "not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires restrict return "
        "short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try "
        "typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq "
        "NAN INFINITY HUGE_VAL errno linux unix",
    )
)
"""Keywords of C and C++, and macros of their headers and compilers."""
FILES = frozenset(
    re.findall(
        r"\w+",
        "main replay assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdarg "
        "stdbool stddef stdint stdio stdlib string tgmath time wchar wctype c m all clean help install package test",
    )
)
"""Files of an export, headers of C, libraries, and targets that CMake reserves."""
