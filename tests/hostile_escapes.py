"""Programs that have got at the interpreter's inside and reach out from there: what the sandbox itself has to stop.

CANARY and PORT as in `hostile_functions`. A source by name; every program is called as `f()`.
"""

from __future__ import annotations

from textwrap import dedent

# How a program gets at the interpreter's inside once the screen is out of the way.
INSIDE = """
def inside():
    for kind in object.__subclasses__():
        if kind.__name__ == '_wrap_close':
            return kind.__init__.__globals__['sys'].modules
"""

ESCAPES = {
    name: INSIDE + dedent(source).strip("\n")
    for name, source in {
        "os_open": "def f():\n    m = inside()['os']\n    m.write(m.open('CANARY/x', m.O_CREAT | m.O_WRONLY), b'x')",
        "os_remove": "def f():\n    inside()['os'].remove('CANARY/secret')",
        "os_rename": "def f():\n    inside()['os'].rename('CANARY/secret', 'CANARY/taken')",
        "os_chmod": "def f():\n    inside()['os'].chmod('CANARY/secret', 0)",
        "os_listdir": "def f():\n    inside()['os'].listdir('CANARY')",
        "os_fork": "def f():\n    while True:\n        inside()['os'].fork()",
        "os_kill": "def f():\n    os = inside()['os']\n    os.kill(os.getppid(), 9)",
        "os_exec": "def f():\n    inside()['os'].execv('/bin/touch', ['touch', 'CANARY/x'])",
        "os_spawn": "def f():\n    inside()['os'].posix_spawn('/bin/touch', ['touch', 'CANARY/x'], {})",
        "os_exit": "def f():\n    inside()['os']._exit(0)",
        "os_abort": "def f():\n    inside()['os'].abort()",
        "os_putenv": "def f():\n    inside()['os'].environ['X'] = 'Y'\n    inside()['os'].setuid(0)",
        "descriptors": """
            def f():
                for n in range(100):
                    try:
                        inside()['os'].close(n)
                    except OSError:
                        pass
        """,
        "forged_answer": "def f():\n    os = inside()['os']\n    os.write(3, b'[1, 2')\n    os._exit(0)",
        "forged_shape": "def f():\n    os = inside()['os']\n    os.write(3, b'{\"result\": 7}')\n    os._exit(0)",
        "forged_depth": "def f():\n    os = inside()['os']\n    os.write(3, b'[' * 50000)\n    os._exit(0)",
        "builtins_open": "def f():\n    inside()['builtins'].open('CANARY/x', 'w')",
        "io_open": "def f():\n    inside()['io'].FileIO('CANARY/x', 'w')",
        "socket": """
            def f():
                inside()['_socket'].socket().connect(('127.0.0.1', PORT))
        """,
        "import_socket": "def f():\n    inside()['builtins'].__import__('_socket').socket().connect(('', PORT))",
        "ctypes": "def f():\n    inside()['ctypes'].CDLL(None).system(b'touch CANARY/x')",
        "ctypes_memory": "def f():\n    inside()['ctypes'].memset(0, 0, 100)",
        "thread": "def f():\n    while True:\n        inside()['_thread'].start_new_thread(print, ())",
        "settrace_off": "def f():\n    inside()['sys'].settrace(None)",
        "settrace_frame": "def f():\n    inside()['sys']._getframe().f_trace = None\n    return 1 // 0",
        "setprofile": "def f():\n    inside()['sys'].setprofile(print)",
        "audit_hook": "def f():\n    inside()['sys'].addaudithook(print)",
        "recursion_limit": "def f():\n    inside()['sys'].setrecursionlimit(10 ** 9)\n    return f()",
        "signal_handler": "def f():\n    inside()['signal'].signal(24, lambda *a: None)\n    while True:\n        pass",
        "rlimit": "def f():\n    r = inside()['resource']\n    r.setrlimit(r.RLIMIT_NOFILE, (99, 99))",
        "gc_objects": "def f():\n    return inside()['gc'].get_objects()",
        "code_object": "def f():\n    f.__code__ = f.__code__.replace(co_code=b'\\xff' * 64)\n    f()",
        "subprocess": "def f():\n    inside()['builtins'].__import__('subprocess').run(['touch', 'CANARY/x'])",
        "exit_handler": "def f():\n    inside()['builtins'].__import__('atexit').register(print)",
    }.items()
}
