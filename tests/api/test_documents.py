"""The Python of the README and of the tour runs as it is printed."""

import re
import textwrap
from pathlib import Path

import onnx
import pytest

ROOT = Path(__file__).parents[2]
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    small (float[N,3,224,224] input) => (float[N,3,224,224] y) { y = Relu(input) }"""


@pytest.mark.parametrize("document", ["README.md", "docs/tour.md"])
def test_its_python_runs(document, tmp_path, monkeypatch, capsys):
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```python\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    code = "\n".join(map(textwrap.dedent, blocks))
    exec(compile(code, document, "exec"), {})
    printed = capsys.readouterr().out
    for said in re.findall(r"^# (.*)|print\(.*\)  # (\S+)$", code, re.MULTILINE):
        assert "".join(said) in printed


def test_links_of_the_documents_lead_somewhere():
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^):#]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
