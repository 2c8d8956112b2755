"""Published models give the answers that are known of them, unfused and fused."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiled import run
from PIL import Image, ImageDraw, ImageFont

from centerface import find_face, load_with_free_size
from onepass.frontends.onnx_import import import_onnx


def run_model(model, inputs):
    graph = import_onnx(model, {name: array.shape for name, array in inputs.items()})
    outputs = run(graph, inputs)
    return [outputs[name] for name in graph.outputs]


def test_centerface_finds_the_face(published):
    data = pytest.importorskip("skimage.data")
    image = data.astronaut().astype(np.float32).transpose(2, 0, 1)[None]
    model = load_with_free_size(published("centerface"))
    heat, scale, offset, _ = run_model(model, {"input.1": image})
    score, (left, top, right, bottom) = find_face(heat, scale, offset)
    assert score >= 0.9
    assert left < 223 < right and top < 115 < bottom  # the astronaut's nose
    assert right - left < 150 and bottom - top < 180


def rendered(text, height=48):
    """`text`, black on white, as a grey image of `height` rows."""
    font = ImageFont.load_default(size=34)
    width = int(font.getlength(text)) + 24
    image = Image.new("L", (width, height), 255)
    ImageDraw.Draw(image).text((12, height // 2), text, fill=0, font=font, anchor="lm")
    return np.asarray(image, np.float32)


def characters(model):
    """The recogniser's alphabet, from the model's metadata: class 0 is the blank, the last one a space."""
    found = {prop.key: prop.value for prop in model.metadata_props}
    return ["", *found["character"].splitlines(), " "]


def decode(scores, alphabet):
    """Greedy CTC: the best class of each step, repeats and blanks dropped."""
    best = scores.argmax(-1)
    kept = [int(c) for at, c in enumerate(best) if c and (at == 0 or c != best[at - 1])]
    return "".join(alphabet[c] for c in kept)


@pytest.mark.parametrize("text", ["Operator Fusion 2026", "1.25 ms"])
def test_rapidocr_reads_a_line(published, text):
    model = onnx.load(published("rapidocr-recogniser"))
    grey = rendered(text) / 127.5 - 1
    image = np.repeat(grey[None, None], 3, 1)
    (scores,) = run_model(model, {"x": image})
    assert decode(scores[0], characters(model)) == text


def test_rapidocr_finds_the_line_and_its_direction(published):
    page = np.ones((1, 3, 160, 480), np.float32)
    line = rendered("Operator Fusion") / 127.5 - 1
    page[:, :, 56:104, 60 : 60 + line.shape[1]] = line
    (found,) = run_model(onnx.load(published("rapidocr-detector")), {"x": page})
    text = found[0, 0] > 0.3
    assert text[70:90, 80 : 40 + line.shape[1]].mean() > 0.6
    assert text[:40].mean() < 0.01 and text[120:].mean() < 0.01
    strip = np.full((1, 3, 48, 192), 1, np.float32)
    strip[..., :] = line[:, 20:212]
    model = onnx.load(published("rapidocr-classifier"))
    (upright,), (turned,) = (run_model(model, {"x": x}) for x in (strip, strip[:, :, ::-1, ::-1].copy()))
    assert upright.argmax() == 0 and turned.argmax() == 1


def magika_features(content):
    """The first and last 1,024 bytes without white space at the ends, padded with 256."""
    head, tail = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    before = [*head, *[256] * (1024 - len(head))]
    return np.array([before + [256] * (1024 - len(tail)) + [*tail]], np.int32)


# Positions among the labels in the package's configuration.
PYTHON, JSON = 143, 87


def test_magika_knows_python_and_json(published):
    model = onnx.load(published("magika"))
    data = json.dumps([{"name": f"item {k}", "size": k, "ok": True} for k in range(50)], indent=2)
    for content, label in ((Path(__file__).read_text(), PYTHON), (data, JSON)):
        (scores,) = run_model(model, {"bytes": magika_features(content.encode())})
        assert scores[0].argmax() == label
        assert scores[0, label] > 0.95


# Numbers of the words in BERT's uncased vocabulary.
WORDS = {"[CLS]": 101, "[SEP]": 102, "eat": 4521, "food": 2833, "a": 1037, "meal": 7954, "the": 1996,
         "train": 3345, "was": 2001, "late": 2397, "again": 2153}  # fmt: skip


def embedding(model, text):
    """The sentence's vector, of length 1."""
    ids = np.array([[WORDS[word] for word in ("[CLS]", *text.split(), "[SEP]")]], np.int64)
    outputs = run_model(model, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    (vector,) = (output[0] for output in outputs if output.shape == (1, 384))
    return vector / np.linalg.norm(vector)


def test_minilm_knows_what_sentences_mean(published):
    model = onnx.load(published("paraphrase-minilm-l3"))
    food, meal, train = (embedding(model, t) for t in ("eat food", "eat a meal", "the train was late again"))
    assert food @ meal == pytest.approx(0.8255, abs=1e-3)  # by ONNX Runtime
    assert food @ train == pytest.approx(-0.0031, abs=1e-3)
