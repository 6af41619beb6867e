"""Python programs that mean harm, and the named reasons they may end in. {canary}: a file; {port}: a local port."""

from __future__ import annotations

from datamodules.tasks.office.errors import Reason

# ruff: noqa: ISC004, E501

TIME, MEMORY = {Reason.TIME_LIMIT}, {Reason.MEMORY_LIMIT}
TIME_OR_MEMORY = TIME | MEMORY
DEPTH = {Reason.RECURSION_LIMIT}
OUT = {Reason.FORBIDDEN}
NAME = {Reason.UNKNOWN_NAME}
RAISED = {Reason.EXCEPTION}
UNSUPPORTED = {Reason.UNSUPPORTED}
SYNTAX = {Reason.SYNTAX}
LONG = {Reason.TOO_LONG}
TYPE = {Reason.RESULT_TYPE}
LARGE = {Reason.RESULT_TOO_LARGE}
UNBOUND = {Reason.NO_RESULT}

ENDLESS = {
    "while true": ("while True:\n    pass", TIME),
    "while true that catches everything": (
        "def f():\n    while True:\n        try:\n            while True:\n                pass\n"
        "        except BaseException:\n            pass\nf()",
        TIME,
    ),
    "endless finally": (
        "def f():\n    try:\n        while True:\n            pass\n    finally:\n        while True:\n            pass\nf()",
        TIME,
    ),
    "endless itertools": ("import itertools\nfor x in itertools.cycle([1]):\n    pass", TIME),
    "sum of a huge range": ("result = sum(range(10**12))", TIME),
    "membership in a huge range": ("result = 1\nfor i in range(10**15):\n    result = (result * 3) % 7", TIME),
    "endless coroutine": (
        "import asyncio\nasync def f():\n    while True:\n        await asyncio.sleep(0)\nasyncio.run(f())",
        OUT,
    ),
    "long sleep": ("import time\ntime.sleep(1000)\nresult = 1", OUT),
    "huge power modulo": ("result = pow(3, 10**30000, 10**30000 + 7)", TIME_OR_MEMORY),
    "factorial": ("import math\nmath.factorial(10**6)", TIME_OR_MEMORY),
    "power of a large number": ("x = pow(3, 10**7)", TIME_OR_MEMORY),
    "catastrophic pattern": ("import re\nfor i in range(10**6):\n    re.findall('(a*)*(a*)*b', 'a' * 9000)", TIME),
    "catastrophic backreference": (
        "import re\nresult = 1 if re.match(r'(a+)+\\1(a|aa)+$', 'a' * 60 + 'b') else 0",
        TIME | RAISED,
    ),
    "sort with a slow key": ("sorted(range(10**5), key=lambda x: sum(range(10**6)))", TIME_OR_MEMORY),
    "nested comprehensions": (
        "x = [[[0 for i in range(999)] for j in range(999)] for k in range(999)]",
        TIME_OR_MEMORY,
    ),
}

MEMORY_BOMBS = {
    "doubling list": ("a = [0]\nwhile True:\n    a = a + a", MEMORY),
    "long text": ('s = "x" * 10**9', MEMORY),
    "long bytes": ("b = bytes(10**10)", MEMORY),
    "large number": ("x = 10 ** 10 ** 8", MEMORY),
    "tower of powers": ("x = 9 ** 9 ** 9", MEMORY),
    "shift": ("x = 1 << 10 ** 10", MEMORY),
    "format width": ('s = "{:>1000000000}".format(1)', MEMORY),
    "f-string width": ('s = f"{1:1000000000}"', MEMORY),
    "percent width": ('s = "%1000000000d" % 1', MEMORY),
    "replace": ('s = "a" * 10000\nfor i in range(10):\n    s = s.replace("a", s)', MEMORY),
    "join": ('s = ("x" * 10**6).join(["y"] * 10**6)', MEMORY),
    "binary digits": ("s = bin(1 << 10**7)", MEMORY),
    "list of a range": ("x = list(range(10**9))", MEMORY),
    "set": ("x = {i for i in range(10**8)}", MEMORY),
    "dict": ("d = {}\ni = 0\nwhile True:\n    d[i] = [i] * 1000\n    i = i + 1", MEMORY),
    "product": ("import itertools\nx = list(itertools.product(range(100), repeat=10))", MEMORY),
    "entropy": ("import os\nos.urandom(10**9)", MEMORY | OUT),
    "text kept near the limit": ('result = "a" * (10 * 2**20)', LARGE),
}

RESULTS = {
    "one text many times": ('a = "x" * 10**6\nresult = [a] * 10**5\nresult', TYPE),
    "one text many times as the last expression": ('a = "x" * 10**6\n[[a] * 10**5] * 10**4', UNBOUND),
    "cyclic list": ("result = []\nresult.append(result)\nresult", TYPE),
    "list nested 100,000 deep": ("a = []\nfor i in range(10**5):\n    a = [a]\nresult = a\nresult", TYPE | MEMORY),
    "many digits": ("result = 10 ** 5000", LARGE),
    "nineteen digits": ("result = 10 ** 18", LARGE),
    "long text": ('result = "x" * 257', LARGE),
    "float": ("result = float('nan')", TYPE),
    "bool": ("result = True", TYPE),
    "none": ("result = None", TYPE),
    "function that prints as text": ("result = lambda: 1", TYPE),
    "class that prints as text": ('result = type("325", (), {})', TYPE),
    "object that claims to be a text": (
        "class A:\n    def __str__(self):\n        return '325'\n    def __repr__(self):\n        return '325'\nresult = A()",
        TYPE,
    ),
    "subclass of int": ("class A(int):\n    pass\nresult = A(325)", UNSUPPORTED),
    "lying type and len": ("def type(x):\n    return int\nlen = type\nresult = [1]", TYPE),
    "no result": ("answer = 325", UNBOUND),
    "deleted result": ("result = 325\ndel result", UNSUPPORTED),
}

RECURSION = {
    "function": ("def f(n):\n    return f(n + 1)\nf(0)", DEPTH),
    "lambda": ("f = lambda n: f(n)\nf(0)", DEPTH),
    "two functions": ("def f():\n    return g()\ndef g():\n    return f()\nf()", DEPTH),
    "repr of a class": ("class A:\n    def __repr__(self):\n        return repr(self)\nrepr(A())", DEPTH),
    "hash of a nested tuple": ("a = ()\nfor i in range(10**4):\n    a = (a,)\nhash(a)", DEPTH),
    "comparison of nested lists": (
        "a = []\nb = []\nfor i in range(10**4):\n    a = [a]\n    b = [b]\na == b",
        DEPTH | MEMORY,
    ),
    "JSON": ("import json\njson.loads('[' * 10**5)", RAISED),
    "caught and repeated": (
        "def f():\n    try:\n        return f()\n    except RecursionError:\n        return f()\nf()",
        DEPTH | TIME,
    ),
}

FILES = {
    "read": ('result = open("{canary}").read()', OUT),
    "write": ('open("{canary}", "w").write("gone")', OUT),
    "append": ('with open("{canary}", "a") as f:\n    f.write("more")', OUT),
    "caught and tried again": (
        'result = 0\nfor i in range(99):\n    try:\n        open("{canary}", "w")\n    except BaseException:\n        pass',
        OUT,
    ),
    "pathlib read": ('from pathlib import Path\nresult = Path("{canary}").read_text()', OUT),
    "pathlib write": ('from pathlib import Path\nPath("{canary}").write_text("gone")', OUT),
    "pathlib unlink": ('from pathlib import Path\nPath("{canary}").unlink()', OUT),
    "pathlib listing": ('from pathlib import Path\nresult = len(list(Path("/").iterdir()))', OUT),
    "os listing": ('import os\nresult = len(os.listdir("/"))', OUT),
    "os remove": ('import os\nos.remove("{canary}")', OUT),
    "os rename": ('import os\nos.rename("{canary}", "{canary}2")', OUT),
    "os system": ('import os\nos.system("rm -rf {canary}")', RAISED),
    "environment": ("import os\nresult = len(os.environ)", OUT),
    "environment variable": ('import os\nresult = os.getenv("PATH")', OUT),
    "entropy": ("import os\nresult = len(os.urandom(4))", OUT),
    "proc": ('result = open("/proc/self/environ").read()', OUT),
    "descriptor": ("result = open(1, 'w')", RAISED),
}

NETWORK = {
    "socket": ('import socket\nsocket.create_connection(("127.0.0.1", {port}))', OUT),
    "urllib": ('from urllib.request import urlopen\nurlopen("http://127.0.0.1:{port}/")', OUT),
    "http": ('import http.client\nhttp.client.HTTPConnection("127.0.0.1", {port}).connect()', OUT),
    "requests": ('import requests\nrequests.get("http://127.0.0.1:{port}/")', OUT),
    "asyncio": ('import asyncio\nasyncio.run(asyncio.open_connection("127.0.0.1", {port}))', RAISED),
    "pathlib with an address": ('from pathlib import Path\nPath("//127.0.0.1:{port}/x").read_text()', OUT),
}

IMPORTS = {
    "subprocess": ('import subprocess\nsubprocess.run(["touch", "{canary}2"])', OUT),
    "ctypes": ("import ctypes\nctypes.string_at(0)", OUT),
    "importlib": ('import importlib\nimportlib.import_module("os").system("id")', OUT),
    "pickle": ("import pickle\npickle.loads(b'cos\\nsystem\\n(S\\'id\\'\\ntR.')", OUT),
    "dunder import": ('__import__("os").system("id")', NAME),
    "builtins": ("import builtins\nbuiltins.open", OUT),
    "star import": ("from os import *\nsystem('id')", UNSUPPORTED),
    "host package": ("import datamodules.tasks.office.sandbox\nresult = 1", OUT),
    "sys modules": ('import sys\nsys.modules["os"].system("id")', RAISED),
    "recursion limit": ("import sys\nsys.setrecursionlimit(10**9)", RAISED),
}

ESCAPES = {
    "subclasses": ("result = ().__class__.__bases__[0].__subclasses__()", RAISED),
    "subclasses of object": ("result = object.__subclasses__()", RAISED),
    "mro": ("result = type(1).__mro__[1].__subclasses__()", RAISED),
    "globals of a function": ("result = (lambda: 0).__globals__", RAISED),
    "code of a function": ("result = (lambda: 0).__code__.co_consts", RAISED),
    "globals of a library function": ("result = add.__globals__['__builtins__']", RAISED),
    "format string": ('result = "{{0.__class__.__init__.__globals__}}".format(add)', RAISED),
    "format map": ('result = "{{a.__class__}}".format_map({{"a": add}})', RAISED),
    "getattr": ('result = getattr(getattr(1, "__cla" + "ss__"), "__base__")', RAISED),
    "traceback frame": (
        "try:\n    1 / 0\nexcept Exception as e:\n    result = e.__traceback__.tb_frame.f_back.f_globals",
        RAISED,
    ),
    "generator frame": ("def g():\n    yield 1\nresult = g().gi_frame.f_back", UNSUPPORTED),
    "coroutine frame": ("async def f():\n    pass\nresult = f().cr_frame.f_globals", RAISED),
    "metaclass": ("class M(type):\n    pass\nclass A(metaclass=M):\n    pass\nresult = A.__base__", UNSUPPORTED),
    "type with bases": ('result = type("X", (object,), {{"__del__": lambda s: 0}}).__base__', RAISED),
    "globals": ("result = globals()", NAME),
    "vars": ("result = vars()", NAME),
    "compile": ("result = compile('1', '', 'eval')", NAME),
    "eval of an import": ("result = eval('__import__(\"os\")')", NAME),
    "exec of an import": ("exec('import socket')", OUT),
    "input": ("result = input()", NAME),
    "breakpoint": ("breakpoint()", NAME),
    "raise SystemExit": ("raise SystemExit(0)", RAISED),
    "raise KeyboardInterrupt": ("raise KeyboardInterrupt", RAISED),
    "raise BaseException": ("raise BaseException", RAISED),
    "giant exception": ('raise ValueError("x" * 10**6)', RAISED),
    "guess the measure": ("_measure_ = lambda v: 'text'\nresult = [1]", TYPE),
}

OUTPUT = {
    "endless lines": ('while True:\n    print("x" * 1000)', {Reason.OUTPUT_LIMIT} | TIME),
    "one long line": ('print("x" * 10**6)', {Reason.OUTPUT_LIMIT}),
    "many empty lines": ("for i in range(10**6):\n    print()", {Reason.OUTPUT_LIMIT} | TIME),
    "forged answer": ('print("{{\\"kind\\": \\"text\\", \\"text\\": \\"325\\"}}")', UNBOUND),
    "control characters": ('print("\\x1b]0;title\\x07\\x1b[2J")', UNBOUND),
}

SOURCES = {
    "parentheses": ("result = " + "(" * 3900, SYNTAX),
    "brackets": ("x = " + "[" * 1900 + "]" * 1900, SYNTAX | UNBOUND),
    "minus signs": ("result = " + "-" * 3900 + "1", SYNTAX),
    "not": ("result = " + "not " * 900 + "1", SYNTAX),
    "lambdas": ("result = " + "lambda: " * 480 + "1", SYNTAX),
    "attributes": ("result = add" + ".b" * 1900, SYNTAX),
    "calls": ("result = add" + "()" * 1900, SYNTAX),
    "sum of 1,900 terms": ("result = " + "+".join(["1"] * 1900), SYNTAX),
    "indentation": ("".join(" " * i + "if 1:\n" for i in range(80)) + " " * 80 + "x = 1", UNBOUND),
    "nested dicts": ("x = " + "{{1:" * 900 + "1" + "}}" * 900, SYNTAX),
    "nested f-strings": ("result = " + "f'{{" * 300 + "1" + "}}'" * 300, SYNTAX),
    "100,000 parentheses": ("(" * 10**5 + ")" * 10**5, LONG),
    "ten megabytes": ("x" * 10**7, LONG),
    "null byte": ("result = 1\x00", SYNTAX),
    "null byte in a text": ('result = "a\x00" + 1', RAISED),
    "lone surrogate": ('result = "\ud800"', SYNTAX),
    "escaped surrogate": ('result = "\\ud800" + 1', RAISED),
    "right to left": ("result = \u202e1", SYNTAX),
    "zero width": ("result\u200b = 1", SYNTAX),
    "look-alike name": ("r\u0435sult = 1", UNBOUND),
    "other digits": ("result = \u0661\u0662", SYNTAX),
    "only blanks": (" \t\n\f", {Reason.EMPTY_PROGRAM}),
    "prose": ("The answer is 325.", SYNTAX),
    "fenced": ("```python\nresult = 325\n```", SYNTAX),
    "JSON": ('{{"result": 325}}', UNBOUND),
    "broken JSON": ('{{"result": NaN,', SYNTAX),
    "million digits": ("result = " + "9" * 3900, LARGE),
    "control characters": ("result = 1\x1b[2J\x07", SYNTAX),
    "carriage returns": ("result = 1\rresult = 'x' * 300\r", LARGE),
}

GROUPS = {
    "endless": ENDLESS,
    "memory": MEMORY_BOMBS,
    "result": RESULTS,
    "recursion": RECURSION,
    "files": FILES,
    "network": NETWORK,
    "imports": IMPORTS,
    "escapes": ESCAPES,
    "output": OUTPUT,
    "source": SOURCES,
}

PLAIN = ("endless", "memory", "result", "recursion")
"""Groups whose programs are written without places to fill in."""

CASES = {
    f"{group}: {name}": (program, frozenset(reasons), group not in PLAIN)
    for group, programs in GROUPS.items()
    for name, (program, reasons) in programs.items()
}
