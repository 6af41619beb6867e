"""Programs that try to hang, flood, escape or harm, for the tracer's worker.

CANARY is a folder, PORT a listening socket. One row: name, the error it must end in (alternatives where Python versions
differ), source. Every program is called as `f()`.
"""

from __future__ import annotations

from textwrap import dedent

ENDLESS = [
    ("while_true", "EventLimit", "def f():\n    while True:\n        pass"),
    ("for_iter_callable", "EventLimit", "def f():\n    for _ in iter(int, 1):\n        pass"),
    ("itertools_count", "EventLimit", "import itertools\ndef f():\n    for _ in itertools.count():\n        pass"),
    ("sum_of_count", "CpuLimit", "import itertools\ndef f():\n    return sum(itertools.count())"),
    ("max_of_cycle", "CpuLimit", "import itertools\ndef f():\n    return max(itertools.cycle([1, 2]))"),
    ("in_endless", "CpuLimit", "import itertools\ndef f():\n    return -1 in itertools.count()"),
    ("infinite_generator", "EventLimit", "def g():\n    while True:\n        yield 1\ndef f():\n    return sum(g())"),
    ("list_of_generator", "EventLimit", "def g():\n    while True:\n        yield 1\ndef f():\n    return list(g())"),
    ("growing_list_loop", "CpuLimit", "def f():\n    xs = [1]\n    for x in xs:\n        xs.append(x)"),
    ("module_level_loop", "CpuLimit", "while True:\n    pass\ndef f():\n    pass"),
    ("lambda_loop", "EventLimit", "def f():\n    g = lambda: 1\n    while g():\n        g()"),
    ("huge_power", "CpuLimit", "def f():\n    return 7 ** (10 ** 9)"),
    ("power_tower", "CpuLimit", "def f():\n    return 3 ** (3 ** (3 ** 3)) % 7"),
    ("slow_factorial", "CpuLimit", "import math\ndef f():\n    return math.factorial(10 ** 8)"),
    ("catastrophic_regex", "CpuLimit", "import re\ndef f():\n    return re.match('(a+)+$', 'a' * 40 + 'b')"),
    (
        "catching_everything",
        "EventLimit",
        """
        def f():
            while True:
                try:
                    raise ValueError
                except BaseException:
                    continue
     """,
    ),
    (
        "endless_eq",
        "EventLimit",
        """
        class A:
            def __eq__(self, other):
                while True:
                    pass
        def f():
            return A() == 1
     """,
    ),
    (
        "endless_hash",
        "EventLimit",
        """
        class A:
            def __hash__(self):
                while True:
                    pass
        def f():
            return {A(): 1}
     """,
    ),
    (
        "endless_repr",
        "EventLimit",
        """
        class A:
            def __repr__(self):
                while True:
                    pass
        def f():
            return repr([A()])
     """,
    ),
    (
        "endless_del",
        "EventLimit",
        """
        class A:
            def __del__(self):
                while True:
                    pass
        def f():
            A()
     """,
    ),
    (
        "comparison_forever",
        "EventLimit",
        """
        class A:
            def __lt__(self, other):
                while True:
                    pass
        def f():
            return sorted([A(), A()])
     """,
    ),
]

MEMORY = [
    ("list_bomb", "MemoryLimit", "def f():\n    return [0] * (10 ** 10)"),
    ("string_bomb", "MemoryLimit", "def f():\n    return 'a' * (10 ** 11)"),
    ("bytes_bomb", "MemoryLimit", "def f():\n    return bytearray(10 ** 10)"),
    ("doubling_unseen", "MemoryLimit", "def f():\n    return max([b'a' * 2 ** k for k in range(40)])"),
    ("doubling", "OutputLimit", "def f():\n    s = b'a'\n    while True:\n        s = s + s"),
    ("doubling_list", "OutputLimit", "def f():\n    xs = [1]\n    while True:\n        xs = xs + xs"),
    ("range_list", "MemoryLimit", "def f():\n    return list(range(10 ** 10))"),
    ("dict_bomb", "MemoryLimit", "def f():\n    return dict.fromkeys(range(10 ** 9))"),
    ("padding", "MemoryLimit", "def f():\n    return f'{1:10000000000}'"),
    ("ljust", "MemoryLimit", "def f():\n    return 'x'.ljust(10 ** 11)"),
    ("replace_bomb", "MemoryLimit", "def f():\n    s = 'a' * 10 ** 5\n    return s.replace('a', 'b' * 10 ** 6)"),
    ("shift_bomb", "MemoryLimit", "def f():\n    return 1 << (10 ** 12)"),
    ("permutations", "MemoryLimit", "import itertools\ndef f():\n    return list(itertools.permutations(range(13)))"),
    (
        "product_repeat",
        "MemoryLimit",
        "import itertools\ndef f():\n    return [*itertools.product(range(99), repeat=9)]",
    ),
    (
        "memory_error_caught",
        "EventLimit",
        """
        def f():
            while True:
                try:
                    b'a' * (10 ** 12)
                except MemoryError:
                    pass
     """,
    ),
]

RECURSION = [
    ("recursion", "RecursionLimit", "def f():\n    return f()"),
    ("mutual_recursion", "RecursionLimit", "def g():\n    return f()\ndef f():\n    return g()"),
    (
        "recursion_caught",
        "RecursionLimit",
        """
        def f():
            try:
                f()
            except BaseException:
                f()
     """,
    ),
    (
        "recursive_repr",
        "RecursionLimit",
        """
        class A:
            def __repr__(self):
                return repr(self)
        def f():
            return repr(A())
     """,
    ),
    ("recursive_key", "RecursionLimit", "def f(x=1):\n    return sorted([1, 2], key=f)"),
    (
        "deep_nesting",
        "RecursionLimit|Raised|CpuLimit",
        """
        def f():
            xs = []
            for _ in range(2300):
                xs = [xs]
            raise ValueError(repr(xs))
     """,
    ),
    ("nested_source", "MemoryLimit|RecursionLimit|SyntaxError", "def f():\n    return " + "-" * 50_000 + "1"),
]

OUTPUT = [
    ("print_flood", "OutputLimit", "def f():\n    while True:\n        print('flood' * 1000)"),
    ("giant_print", "OutputLimit", "def f():\n    print('x' * 10 ** 7)"),
    ("giant_result", "OutputLimit", "def f():\n    return list(range(10 ** 6))"),
    ("giant_string_result", "OutputLimit", "def f():\n    return 'x' * 10 ** 7"),
    ("giant_variable", "OutputLimit", "def f():\n    x = [[1] * 1000] * 1000\n    x.append(1)\n    return 1"),
    ("giant_integer_text", "Raised", "def f():\n    return str(10 ** 10000)"),
    ("giant_source", "Forbidden", "def f():\n    pass\n" + "# padding\n" * 20_000),
]

REACHING = [
    ("import_os", "Forbidden", "import os\ndef f():\n    return os.listdir('/')"),
    ("import_inside", "Forbidden", "def f():\n    import subprocess\n    subprocess.run(['touch', 'CANARY/x'])"),
    ("import_from", "Forbidden", "from os import system\ndef f():\n    system('touch CANARY/x')"),
    ("import_sys", "Forbidden", "import sys\ndef f():\n    sys.exit()"),
    (
        "import_socket",
        "Forbidden",
        """
        import socket
        def f():
            socket.create_connection(('127.0.0.1', PORT))
     """,
    ),
    (
        "import_urllib",
        "Forbidden",
        """
        from urllib.request import urlopen
        def f():
            urlopen('http://127.0.0.1:PORT/')
     """,
    ),
    ("import_ctypes", "Forbidden", "import ctypes\ndef f():\n    ctypes.string_at(0)"),
    ("import_threading", "Forbidden", "import threading\ndef f():\n    threading.Thread(target=print).start()"),
    ("import_multiprocessing", "Forbidden", "import multiprocessing\ndef f():\n    multiprocessing.Process().start()"),
    ("import_signal", "Forbidden", "import signal\ndef f():\n    signal.alarm(0)"),
    ("import_gc", "Forbidden", "import gc\ndef f():\n    return gc.get_objects()"),
    ("import_importlib", "Forbidden", "import importlib\ndef f():\n    importlib.import_module('os')"),
    ("import_dotted", "Forbidden", "import collections.abc\ndef f():\n    return collections.abc.sys"),
    ("module_of_module", "Raised", "import re\ndef f():\n    return re.enum.sys.modules"),
    ("dunder_import", "Forbidden", "def f():\n    return __import__('os').system('touch CANARY/x')"),
    ("open_write", "Raised", "def f():\n    open('CANARY/x', 'w').write('x')"),
    ("open_read", "Raised", "def f():\n    return open('CANARY/secret').read()"),
    ("eval_text", "Raised", "def f():\n    return eval('1 + 1')"),
    ("exec_text", "Raised", "def f():\n    exec('import os')"),
    ("compile_text", "Raised", "def f():\n    compile('1', 'x', 'eval')"),
    ("input_wait", "Raised", "def f():\n    return input()"),
    ("breakpoint_call", "Raised", "def f():\n    breakpoint()"),
    ("globals_call", "Raised", "def f():\n    return globals()"),
    ("unknown_codec", "Forbidden", "def f():\n    return 'x'.encode('zip_codec_of_mine')"),
]

TRICKS = [
    ("subclasses", "Forbidden", "def f():\n    return ().__class__.__base__.__subclasses__()"),
    (
        "wrap_close",
        "Forbidden",
        """
        def f():
            for kind in object.__subclasses__():
                if kind.__name__ == '_wrap_close':
                    kind.__init__.__globals__['system']('touch CANARY/x')
     """,
    ),
    (
        "module_loader",
        "Forbidden",
        """
        def f():
            for kind in object.__subclasses__():
                if kind.__name__ == 'BuiltinImporter':
                    kind.load_module('posix').open('CANARY/x', 65)
     """,
    ),
    ("function_globals", "Forbidden", "def f():\n    return print.__self__.__init__.__globals__"),
    ("function_code", "Forbidden", "def f():\n    f.__code__ = (lambda: 1).__code__"),
    ("code_replace", "Forbidden", "def f():\n    return f.__code__.replace(co_code=b'\\0' * 1000)"),
    ("closure_cells", "Forbidden", "def f():\n    return [c.cell_contents for c in getattr.__closure__]"),
    ("builtins_name", "Forbidden", "def f():\n    return __builtins__['open']('CANARY/secret')"),
    ("generator_frame", "Forbidden", "def f():\n    g = (i for i in [1])\n    return g.gi_frame.f_back.f_globals"),
    (
        "traceback_frame",
        "Forbidden",
        """
        def f():
            try:
                1 / 0
            except ZeroDivisionError as e:
                return e.__traceback__.tb_frame.f_back.f_globals
     """,
    ),
    ("getattr_dunder", "Forbidden", "def f():\n    return getattr((), '__class__')"),
    ("getattr_built", "Forbidden", "def f():\n    return getattr((), '_' * 2 + 'class' + '_' * 2)"),
    ("setattr_dunder", "Forbidden", "def f():\n    setattr(f, '__code__', None)"),
    (
        "str_subclass_name",
        "Raised",
        """
        class S(str):
            def startswith(self, *a):
                return False
        def f():
            return getattr((), S('__class__'))
     """,
    ),
    ("attrgetter", "Raised", "import operator\ndef f():\n    return operator.attrgetter('__class__')(())"),
    (
        "metaclass",
        "Forbidden",
        "class M(type):\n    def __instancecheck__(c, o):\n        return True\ndef f():\n    pass",
    ),
    ("patch_builtin", "Raised", "def f():\n    setattr(list, 'append', None)"),
    (
        "match_class",
        "Forbidden",
        "def f():\n    match ():\n        case object(__class__=c):\n            return c.mro()",
    ),
    ("async_code", "Forbidden", "async def g():\n    pass\ndef f():\n    return g().cr_frame"),
]

ENDINGS = [
    ("system_exit", "Raised", "def f():\n    raise SystemExit(0)"),
    ("keyboard_interrupt", "Raised", "def f():\n    raise KeyboardInterrupt"),
    ("generator_exit", "Raised", "def f():\n    raise GeneratorExit"),
    ("base_exception", "Raised", "class E(BaseException):\n    pass\ndef f():\n    raise E"),
    (
        "bad_exception_text",
        "Raised",
        """
        class E(Exception):
            def __str__(self):
                while True:
                    pass
            __repr__ = __str__
        def f():
            raise E()
     """,
    ),
    ("huge_exception", "Raised", "def f():\n    raise ValueError('x' * 10 ** 7)"),
    (
        "raise_in_del",
        "Raised",
        """
        class A:
            def __del__(self):
                raise SystemExit
        def f():
            a = A()
            del a
            raise ValueError
     """,
    ),
    (
        "raise_in_eq",
        "Raised",
        """
        class A:
            def __eq__(self, other):
                raise KeyboardInterrupt
        def f():
            return A() in [1]
     """,
    ),
    (
        "raise_in_hash",
        "Raised",
        """
        class A:
            def __hash__(self):
                raise MemoryErrorOfMine
        def f():
            return {A()}
     """,
    ),
    (
        "raise_in_repr",
        "Raised",
        """
        class A:
            def __repr__(self):
                raise SystemExit
        def f():
            return f'{A()!r}'
     """,
    ),
    ("stop_iteration", "Raised", "def f():\n    raise StopIteration"),
    ("no_python", "SyntaxError", "def f(:\n    pass"),
    ("null_byte", "SyntaxError", "def f():\n    return '\0'"),
]

HOSTILE = {
    name: (error, dedent(source).strip("\n"))
    for group in (ENDLESS, MEMORY, RECURSION, OUTPUT, REACHING, TRICKS, ENDINGS)
    for name, error, source in group
}
