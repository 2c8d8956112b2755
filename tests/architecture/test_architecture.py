"""The source tree keeps its rules, and each rule can fail."""

from pathlib import Path

import pytest
import source_rules as rules

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "onepass"
MODULES = sorted(PACKAGE.rglob("*.py"))
ALL = sorted([*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py"),
              *(ROOT / "benchmarks").rglob("*.py")])
OF_THE_PACKAGE = [
    rules.imports_stand_at_the_top, rules.sizes_are_small, rules.all_is_documented, rules.all_is_annotated,
]


def complaints(files, rule):
    return [f"{path.relative_to(ROOT)}: {text}" for path in files for text in rule(path.read_text("utf-8"))]


def assert_none(found):
    assert not found, "\n".join(found)


@pytest.mark.parametrize("rule", OF_THE_PACKAGE, ids=lambda rule: rule.__name__)
def test_package_keeps_the_rule(rule):
    assert_none(complaints(MODULES, rule))


def test_imports_go_down_the_layers():
    found = []
    for path in MODULES:
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        # The package's own __init__ and __main__ offer the top of the tree to users.
        if not package.startswith("__"):
            found += complaints([path], lambda source, of=package: rules.layers_go_down(of, source))
    assert_none(found)


def test_every_package_has_a_layer():
    names = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES}
    assert {name for name in names if not name.startswith("__")} <= set(rules.RANK)


def test_tolerances_are_central_everywhere():
    outside = [path for path in ALL if path != PACKAGE / "core" / "tolerance.py"
               and "architecture" not in path.parts]
    assert_none(complaints(outside, rules.tolerances_are_central))


def test_only_the_command_line_prints():
    library = [path for path in MODULES if path.stem != "cli" and "cli" not in path.parts]
    assert_none(complaints(library, rules.library_is_silent))


def test_text_is_clean_everywhere():
    files = [path for path in ALL if "architecture" not in path.parts]
    texts = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    assert_none(complaints([*files, *texts], rules.text_is_clean))


BROKEN = [
    (rules.imports_stand_at_the_top, "def f():\n    import os\n"),
    (rules.sizes_are_small, "x = 1\n" * 601),
    (rules.sizes_are_small, "def f():\n" + "    x = 1\n" * 60),
    (rules.all_is_documented, "x = 1\n"),
    (rules.all_is_documented, '"""M."""\ndef f() -> None:\n    pass\n'),
    (rules.all_is_documented, '"""M."""\nclass C:\n    """C."""\n    def f(self) -> None:\n        pass\n'),
    (rules.all_is_documented, '"""' + "line\n" * 11 + '"""\n'),
    (rules.all_is_annotated, "def f(x) -> None: ...\n"),
    (rules.all_is_annotated, "def f(x: int): ...\n"),
    (rules.all_is_annotated, "def f(*xs) -> None: ...\n"),
    (rules.tolerances_are_central, "assert_allclose(a, b, rtol=1e-3)\n"),
    (rules.library_is_silent, "print(1)\n"),
    (rules.text_is_clean, "# TO" + "DO later\n"),
    (rules.text_is_clean, "path = '/ho" + "me/me/model.onnx'\n"),
    (rules.text_is_clean, "raise Not" + "ImplementedError\n"),
]


@pytest.mark.parametrize(("rule", "source"), BROKEN, ids=lambda x: getattr(x, "__name__", ""))
def test_the_rule_can_fail(rule, source):
    assert rule(source)


@pytest.mark.parametrize(("package", "source"), [
    ("core", "import onepass.loops.ir\n"),
    ("graph", "from onepass.cost.machine import Machine\n"),
    ("cost", "from onepass.frontends import onnx_model\n"),
    ("targets", "from onepass.graph.ir import Graph\n"),
    ("runtime", "from onepass.fuse.plan import Plan\n"),
    ("fuse", "from onepass import pipeline\n"),
    ("ops", "from onepass.nowhere import x\n"),
])
def test_the_layer_rule_can_fail(package, source):
    assert rules.layers_go_down(package, source)


def test_the_layer_rule_lets_good_imports_pass():
    source = "import numpy\nfrom onepass.core.errors import UserError\nfrom onepass.fuse.plan import Plan\n"
    assert rules.layers_go_down("fuse", source) == []
    assert rules.layers_go_down("pipeline", source) == []
