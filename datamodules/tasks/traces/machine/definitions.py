"""Builtins that may call Python functions or run generators, written in Python for our executor.

CPython runs them in C, where a half-done `sorted` or `map` is invisible. The executor runs these definitions instead
whenever an argument is a Python function or a generator, as hidden frames, so that the half-done builtin is plain data
like every other frame. The order in which they call back is CPython's (`Follower` compares it event by event).

This file is compiled by the executor, never imported; its functions see the builtins only.
"""

# Plain loops on purpose: a comprehension or any() would be a frame or a builtin of its own.
# ruff: noqa: B905, D103, PERF401, PERF402, SIM110
# mypy: ignore-errors


def drain(iterable, limit=-1):
    items = []
    if limit == 0:
        return items
    for item in iterable:
        items.append(item)
        if len(items) == limit:
            break
    return items


def contains(iterable, wanted):
    for item in iterable:
        if item is wanted or item == wanted:
            return True
    return False


def list_(iterable):
    items = []
    for item in iterable:
        items.append(item)
    return items


def tuple_(iterable):
    items = []
    for item in iterable:
        items.append(item)
    return tuple(items)


def set_(iterable):
    items = set()
    for item in iterable:
        items.add(item)
    return items


def frozenset_(iterable):
    items = []
    for item in iterable:
        items.append(item)
    return frozenset(items)


def dict_(iterable, **keywords):
    items = []
    for item in iterable:
        items.append(item)
    return dict(items, **keywords)


def sum_(iterable, start=0):
    items = []
    for item in iterable:
        items.append(item)
    return sum(items, start)


def any_(iterable):
    for item in iterable:
        if item:
            return True
    return False


def all_(iterable):
    for item in iterable:
        if not item:
            return False
    return True


def sorted_(iterable, *, key=None, reverse=False):
    items = []
    for item in iterable:
        items.append(item)
    if key is None:
        return sorted(items, reverse=reverse)
    keys = []
    for item in items:
        keys.append(key(item))
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)
    result = []
    for index in order:
        result.append(items[index])
    return result


def sort_(self, *, key=None, reverse=False):
    items = self[:]
    self.clear()
    keys = []
    for item in items:
        keys.append(key(item))
    for index in sorted(range(len(items)), key=keys.__getitem__, reverse=reverse):
        self.append(items[index])


def extreme(biggest, values, key, default):
    if len(values) > 1:
        iterable = values
    else:
        (iterable,) = values
    found = False
    best = best_key = None
    for item in iterable:
        rank = item if key is None else key(item)
        if not found or (rank > best_key if biggest else rank < best_key):
            best, best_key = item, rank
        found = True
    if found:
        return best
    if default:
        return default[0]
    raise ValueError("max() arg is an empty sequence" if biggest else "min() arg is an empty sequence")


def max_(*values, key=None, **default):
    return extreme(True, values, key, list(default.values()))


def min_(*values, key=None, **default):
    return extreme(False, values, key, list(default.values()))


def map_(function, *iterables):
    if len(iterables) == 1:
        for item in iterables[0]:
            yield function(item)
    else:
        for items in zip(*iterables):
            yield function(*items)


def filter_(function, iterable):
    for item in iterable:
        if item if function is None else function(item):
            yield item


def enumerate_(iterable, start=0):
    number = start
    for item in iterable:
        yield number, item
        number += 1


def zip_(*iterables):
    iterators = []
    for iterable in iterables:
        iterators.append(iter(iterable))
    while iterators:
        row = []
        for iterator in iterators:
            for item in iterator:
                row.append(item)
                break
            else:
                return
        yield tuple(row)


def next_(iterator, *default):
    for item in iterator:
        return item
    if default:
        return default[0]
    raise StopIteration


def join_(self, iterable):
    items = []
    for item in iterable:
        items.append(item)
    return self.join(items)


def extend_(self, iterable):
    for item in iterable:
        self.append(item)


def set_update_(self, iterable):
    for item in iterable:
        self.add(item)


def dict_update_(self, iterable, **keywords):
    for key, value in iterable:
        self[key] = value
    self.update(keywords)


def reduce_(function, iterable, *initial):
    started = bool(initial)
    total = initial[0] if initial else None
    for item in iterable:
        total = function(total, item) if started else item
        started = True
    if not started:
        raise TypeError("reduce() of empty iterable with no initial value")
    return total
