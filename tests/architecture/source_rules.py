"""The rules of the source tree, each a function from source text to a list of complaints."""

import ast
import re

# Lower layers first; a module may import modules of lower layers, and of its own package.
LAYERS = (
    ("core",), ("loops",), ("ops",), ("graph",), ("frontends", "cost"), ("forms",), ("tiles",), ("fuse",),
    ("targets",),
    ("runtime",), ("pipeline",), ("gpu_guard",), ("gpu_pipeline",), ("report", "zoo"), ("wall", "compare"),
    ("api",), ("cli",),
)
RANK = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}
# Where the general rule is too loose: the only packages that these may import.
ONLY = {
    "targets": {"core", "cost", "loops", "targets"},
    "runtime": {"core", "cost", "loops", "targets", "runtime"},
    "frontends": {"core", "loops", "ops", "graph", "frontends"},
    "wall": {"core", "cost", "report", "wall"},
    "zoo": {"core", "ops", "zoo"},
}
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_DOCSTRING_LINES = 600, 60, 10
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def imported_packages(source):
    """Names of the packages of onepass that a module imports, with the line of each."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            if node.module == "onepass":
                modules = [f"onepass.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            if parts[0] == "onepass" and len(parts) > 1:
                yield parts[1], node.lineno


def layers_go_down(package, source):
    """Imports go to lower layers, and only to those that the package may know."""
    found = []
    for target, line in imported_packages(source):
        if target == package:
            continue
        if target not in RANK:
            found.append(f"line {line}: imports onepass.{target}, which has no layer")
        elif RANK[target] >= RANK[package] or target not in ONLY.get(package, RANK):
            found.append(f"line {line}: {package} may not import {target}")
    return found


def imports_stand_at_the_top(source):
    """No import inside a function or a class."""
    return [
        f"line {inner.lineno}: import inside {outer.name}"
        for outer in ast.walk(ast.parse(source))
        if isinstance(outer, (*FUNCTIONS, ast.ClassDef))
        for inner in ast.walk(outer)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
    ]


def sizes_are_small(source):
    """No file and no function is too long."""
    lines = len(source.splitlines())
    found = [f"file of {lines} lines"] if lines > MAX_FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, FUNCTIONS):
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"line {node.lineno}: {node.name} has {length} lines")
    return found


def all_is_documented(source):
    """The module (briefly), and every public class and function outside functions, has a docstring."""
    tree = ast.parse(source)
    text = ast.get_docstring(tree)
    found = [] if text else ["no module docstring"]
    # List items and indented lines are a grammar or its rules, and as long as they need to be.
    if text and sum(not line.startswith((" ", "* ")) for line in text.splitlines()) > MAX_DOCSTRING_LINES:
        found.append(f"module docstring of more than {MAX_DOCSTRING_LINES} lines")
    for node in public_definitions(tree):
        if not ast.get_docstring(node) and not is_short_property(node):
            found.append(f"line {node.lineno}: {node.name} has no docstring")
    return found


def public_definitions(tree):
    """Public classes and functions at module level, and public methods of public classes."""
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (n for n in node.body if isinstance(n, FUNCTIONS) and not n.name.startswith("_"))


def is_short_property(node):
    """A property of one expression says in its name what it is."""
    decorators = [d.id for d in node.decorator_list if isinstance(d, ast.Name)]
    return "property" in decorators and len(node.body) == 1


def all_is_annotated(source):
    """Every function annotates its parameters and its result."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, FUNCTIONS):
            a = node.args
            named = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            bare = [arg.arg for arg in named if arg.annotation is None and arg.arg not in ("self", "cls")]
            bare += [] if node.returns else ["return"]
            if bare:
                found.append(f"line {node.lineno}: {node.name} does not annotate {', '.join(bare)}")
    return found


def tolerances_are_central(source):
    """No call chooses a numeric tolerance of its own."""
    return [
        f"line {node.lineno}: {keyword.arg}= outside core/tolerance.py"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in ("rtol", "atol")
    ]


def library_is_silent(source):
    """The library returns records; only the command line prints."""
    return [
        f"line {node.lineno}: print"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def text_is_clean(source):
    """No path of somebody's machine, and no unfinished or disabled work."""
    patterns = {
        "machine path": r"/(?:home|Users|root|work|mnt|tmp)/\w",
        "unfinished work": r"#.*\b(?:TODO|FIXME|XXX|HACK)\b|raise NotImplementedError",
    }
    return [
        f"line {number}: {what}"
        for number, line in enumerate(source.splitlines(), 1)
        for what, pattern in patterns.items()
        if re.search(pattern, line)
    ]
