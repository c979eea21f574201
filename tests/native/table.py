import time
import jax, numpy as np
from . import functions as f, functions_arrays as fa, functions_linear as fl, functions_control as fc
from .cases import difference
from .compiled import write, compiled_all
from selftune.native._values import LoweringError

GROUPS = {
    "maths": f.MATHS,
    "special": f.SPECIAL,
    "rounding": f.ROUNDING,
    "choices": f.CHOICES,
    "whole": f.WHOLE,
    "reductions": f.REDUCTIONS,
    "shapes": fa.SHAPES,
    "indices": fa.INDICES,
    "products": fl.PRODUCTS,
    "solves": fl.SOLVES,
    "factors": fl.FACTORS,
    "control": fc.CONTROL,
    "random": fc.RANDOM,
    "rotations": fc.ROTATIONS,
}


def check(group, dtype, report=False):
    cases = GROUPS[group]
    rng = np.random.default_rng(0)
    t0 = time.time()
    examples = {c.name: c.arguments(dtype, rng) for c in cases}
    written = {}
    bad = []
    for c in cases:
        try:
            written[c.name + "_s"] = write(c.everything if dtype == "float64" else c.pushed, *examples[c.name])
            if c.nasty:
                written[c.name + "_d"] = write(c.pushed, *examples[c.name], sparse=False)
        except Exception as e:
            bad.append(f"{dtype} {c.name}: {type(e).__name__} {e}")
    t1 = time.time()
    calls = compiled_all(written)
    t2 = time.time()
    jit = jax.jit(
        lambda inputs: {c.name: (c.everything if dtype == "float64" else c.pushed)(*inputs[c.name]) for c in cases}
    )
    jit(examples)
    t3 = time.time()
    for n in range(40):
        nasty = n >= 8
        args = {c.name: c.arguments(dtype, rng, nasty=nasty) for c in cases}
        want = jit(args)
        for c in cases:
            for s in ("_d",) if nasty else ("_s", "_d"):
                if c.name + s not in calls:
                    continue
                got = calls[c.name + s](*args[c.name])
                for path, (g, w) in [
                    (p, (dict(jax.tree_util.tree_leaves_with_path(got))[p], w))
                    for p, w in jax.tree_util.tree_leaves_with_path(want[c.name])
                    if p in dict(jax.tree_util.tree_leaves_with_path(got))
                ]:
                    if nasty and path[0].key in ("forward", "reverse"):
                        continue
                    why = difference(g, w, c.ulps, each=group in f.EACH, sparse=s == "_s")
                    if why:
                        bad.append(f"{dtype} {c.name}{s} {jax.tree_util.keystr(path)} of {args[c.name]}: {why}")
    if report:
        print(
            group,
            dtype,
            "lower",
            round(t1 - t0, 1),
            "cc",
            round(t2 - t1, 1),
            "xla",
            round(t3 - t2, 1),
            "run",
            round(time.time() - t3, 1),
            "bad",
            len(bad),
        )
    seen = {}
    out = []
    for b in bad:
        k = b.split(" of ")[0]
        seen[k] = seen.get(k, 0) + 1
        if seen[k] <= 1:
            out.append(b[:700])
    return out
