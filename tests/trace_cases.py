"""Programs for the tracer's tests: one per thing whose state must survive as text."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from datamodules.tasks.traces.programs import Program
from datamodules.tasks.traces.published import cruxeval

SHARED_CRUXEVAL = Path(__file__).parents[2] / "shared" / "data" / "cruxeval.jsonl"

CASES = {
    name: (dedent(source).strip("\n") + "\n", call)
    for name, (source, call) in {
        "loop": ("def f(xs):\n    t = 0\n    for x in xs:\n        t += x\n    return t", "f([1, 2, 3])"),
        "aliases": (
            """
            def f(n):
                a = [1]
                b = a
                c = [a, b, [a]]
                for i in range(n):
                    b.append(i)
                    c.append(c[0])
                return a, c, a is b
            """,
            "f(3)",
        ),
        "cycle": (
            """
            def f():
                a = []
                a.append(a)
                d = {"self": a}
                d["d"] = d
                n = 0
                while a[0][0] is a and d["d"] is d and n < 3:
                    n += 1
                return n
            """,
            "f()",
        ),
        "list_grows_under_its_iterator": (
            "def f(xs):\n    for x in xs:\n        if x < 5:\n            xs.append(x + 2)\n    return xs",
            "f([1, 2])",
        ),
        "nested_iterators": (
            """
            def f(d):
                out = []
                for i, (k, v) in enumerate(d.items()):
                    for a, b in zip(reversed(v), k):
                        out.append((i, a, b))
                return out
            """,
            "f({'xy': [1, 2, 3], 'z': (4, 5)})",
        ),
        "dict_changed": (
            """
            def f(d):
                try:
                    for k in d:
                        d[k + 'x'] = 1
                except RuntimeError as e:
                    return str(e), d
            """,
            "f({'a': 0})",
        ),
        "calls_pending": (
            """
            def g(n):
                return 1 if n < 2 else g(n - 1) + g(n - 2)
            def f(n):
                return [g(n), g(n - 1) * g(2) + len(str(g(n)))]
            """,
            "f(5)",
        ),
        "closures": (
            """
            def f(n):
                total = 0
                def add(x, *rest, scale=2, **more):
                    nonlocal total
                    total += x * scale + len(rest) + len(more)
                    return add
                add(1)(2, 3, scale=5)(4, y=1)
                fs = [lambda x, i=i: x + i + total for i in range(n)]
                return [h(10) for h in fs], total
            """,
            "f(3)",
        ),
        "generators": (
            """
            def count(n):
                for i in range(n):
                    got = yield i * i
                    if got is not None:
                        return
            def chain(n):
                yield from count(n)
                yield -1
            def f(n):
                g = chain(n)
                first = next(g)
                rest = [x for x in g if x % 2 == 0]
                pair, *others = (c for c in 'abc')
                pairs = dict((k, k) for k in count(2))
                return first, rest, pair, others, sum(x for x in count(n)), 4 in chain(n), pairs
            """,
            "f(4)",
        ),
        "builtins_that_call_back": (
            """
            def f(xs):
                a = sorted(xs, key=lambda x: (-x % 3, x))
                b = list(map(lambda x, y: x * y, xs, a))
                c = list(filter(lambda x: x > 1, xs))
                d = max(xs, key=lambda x: x % 4), min(xs, key=lambda x: -x, default=0)
                e = any(x > 3 for x in xs), all(x > 0 for x in xs)
                g = ','.join(str(x) for x in xs)
                xs.sort(key=lambda x: -x)
                h = [(i, x) for i, x in enumerate(x for x in xs)]
                k = list(zip((x for x in xs), range(2)))
                m = {x for x in xs}, tuple(x for x in xs)
                xs.extend(x for x in range(2))
                return a, b, c, d, e, g, xs, h, k, m
            """,
            "f([3, 1, 2, 5])",
        ),
        "exceptions": (
            """
            def g(x):
                if x > 2:
                    raise ValueError('big', x)
                return 10 // x
            def f(n):
                out = []
                for i in range(n):
                    try:
                        out.append(g(i))
                    except ZeroDivisionError:
                        out.append('zero')
                        continue
                    except ValueError as e:
                        try:
                            raise KeyError('k') from e
                        except KeyError as k:
                            out.append((e.args, k.args))
                    else:
                        out.append('fine')
                    finally:
                        out.append(i)
                return out
            """,
            "f(4)",
        ),
        "globals": (
            """
            total = [0]
            count = 0
            def bump(n):
                global count
                count += n
                total.append(count)
            def f(n):
                for i in range(n):
                    bump(i)
                return total, count
            """,
            "f(4)",
        ),
        "sets": (
            """
            def f(words):
                seen = {'lower', 'upper', 'digit', 'space'}
                for w in words:
                    seen.add(w)
                out = []
                for s in seen:
                    out.append(s)
                fixed = frozenset(out)
                return out, [x for x in fixed], seen & {'upper', 'b'}, seen == fixed
            """,
            "f(['b', 'a', 'lower', 'zz'])",
        ),
        "values": (
            """
            import math
            from collections import Counter, defaultdict, deque
            def f():
                big, z, s = 10 ** 40, 3 + 4j, slice(1, None, 2)
                special = [float('inf'), -float('inf'), 0.1, -0.0, b'a\\x00', None, True, ..., 'q"\\'\\n']
                c, d, q = Counter('hello'), defaultdict(list), deque([1, 2], 3)
                bound, kind, module, unbound = special.append, int, math, str.upper
                view = c.items()
                for i in range(2):
                    d[i].append(i)
                    q.append(i)
                    bound(kind(str(i)))
                    c['z'] += 1
                return big, z, special[s], c, d, q, module.gcd(4, 6), unbound('x'), len(view), bytearray(b'xy')
            """,
            "f()",
        ),
        "strings": (
            """
            def f(s):
                out = ''
                for i, c in enumerate(s):
                    out = f'{out}{c!r:>4}{i:02d}'
                return out[::-1]
            """,
            "f('añ\\n')",
        ),
        "unpacking": (
            """
            def f(*a, k=1, **kw):
                x, (y, *z), w = a
                head, *_ = 'abc'
                d = {**kw, 'k': k}
                del d['p'], a
                return x, y, z, w, head, [*z, *d], d
            """,
            "f(1, (2, 3, 4), *[5], p=3, q=[6])",
        ),
        "walrus_and_chains": (
            """
            def f(xs):
                out = []
                while (n := len(xs)) and 0 < n <= 5:
                    out.append(n if n % 2 else -n)
                    xs = xs[1:] or None or []
                return out, not xs, xs is None
            """,
            "f([1, 2, 3])",
        ),
        "names_of_the_notation": (
            """
            def globals_(s1, pop, handling, iter_):
                unbound = s1
                for x in iter_:
                    unbound = unbound + [x]
                del x
                return unbound, pop, handling
            def f(stack):
                return globals_(stack, stack, 'pop(1)', 's1 := 2')
            """,
            "f([])",
        ),
        "many_constants": ("def f(x):\n" + "".join(f"    x += {i}.5\n" for i in range(300)) + "    return x", "f(1)"),
    }.items()
}


def cruxeval_programs() -> list[Program]:
    """Return the 800 functions, or skip the test visibly."""
    if not SHARED_CRUXEVAL.exists():
        pytest.skip(f"no {SHARED_CRUXEVAL}")
    rows = [json.loads(line) for line in SHARED_CRUXEVAL.read_text(encoding="utf-8").splitlines()]
    return [one for one in cruxeval(rows) if isinstance(one, Program)]
