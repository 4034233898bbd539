"""Text to ids and back, equal to transformers but for the begin token that the model was trained with."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from abc import abstractmethod
from pathlib import Path
from typing import Protocol, cast

import pytest
from transformers import AutoTokenizer

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, InputError
from outrider.interfaces import ModelPair, TextCodec
from outrider_adapters.codec import read_codec

TEXTS = ["def main(argv):\n    return 0\n", "", " leading", "naïve café — 日本語 🎈", "<|end|>x", "a\n\n\n  b\t"]
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if messages[0].role == 'nobody' %}{{ raise_exception('no such role') }}{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


class HubTokenizer(Protocol):
    @abstractmethod
    def encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str: ...


def hub(directory: Path) -> HubTokenizer:
    loaded = AutoTokenizer.from_pretrained(directory)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - transformers leaves it untyped
    return cast("HubTokenizer", loaded)


def codec(directory: Path) -> TextCodec:
    found = read_codec(Checkpoint(directory))
    assert found is not None
    return found


def copied(pair: ModelPair, directory: Path, **settings: object) -> Path:
    """The trained target without weights and with other tokenizer settings."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(pair.target / name, directory / name)
    path = directory / "tokenizer_config.json"
    config: dict[str, object] = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("text", TEXTS)
def test_prompts_are_those_of_transformers_behind_the_begin_token(text: str, tiny_pair: ModelPair) -> None:
    assert codec(tiny_pair.target).encode(text) == [1, *hub(tiny_pair.target).encode(text)]


@pytest.mark.parametrize("text", TEXTS)
def test_text_returns_without_special_tokens(text: str, tiny_pair: ModelPair) -> None:
    found = codec(tiny_pair.target)
    ids = [*found.encode(text), 0, 2]
    assert (
        found.decode(ids) == text.replace("<|end|>", "") == hub(tiny_pair.target).decode(ids, skip_special_tokens=True)
    )


def test_half_a_character_becomes_a_replacement_character(tiny_pair: ModelPair) -> None:
    found = codec(tiny_pair.target)
    ids = found.encode("日")
    assert found.decode(ids[:2]) == "\ufffd"


def test_the_choice_of_a_begin_token_is_noted(tiny_pair: ModelPair, tmp_path: Path) -> None:
    found = read_codec(Checkpoint(tiny_pair.target))
    assert found is not None
    assert len(found.notes) == 1
    assert "<|begin|> (id 1)" in found.notes[0]
    explicit = read_codec(Checkpoint(copied(tiny_pair, tmp_path, add_bos_token=True)))
    assert explicit is not None
    assert explicit.notes == ()


@pytest.mark.parametrize(
    ("settings", "begins"),
    [
        ({"add_bos_token": True}, True),
        ({"add_bos_token": False}, False),
        ({"bos_token": None}, False),
        ({"bos_token": {"content": "<|begin|>", "special": True}}, True),
        ({"bos_token": "<|end|>"}, False),
        ({"tokenizer_class": "GPT2Tokenizer"}, False),
        ({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}, True),
        ({"bos_token": "<|nowhere|>"}, False),
    ],
)
def test_the_begin_token_follows_the_settings(
    settings: dict[str, object], begins: bool, tiny_pair: ModelPair, tmp_path: Path
) -> None:
    ids = codec(copied(tiny_pair, tmp_path, **settings)).encode("def")
    assert (ids[0] == 1) is begins


@pytest.mark.parametrize(("settings", "begins"), [({}, True), ({"add_bos_token": False}, False)])
def test_a_post_processor_that_adds_the_begin_token_adds_it_once(
    settings: dict[str, object], begins: bool, tiny_pair: ModelPair, tmp_path: Path
) -> None:
    directory = copied(tiny_pair, tmp_path, **settings)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [1], "tokens": ["<|begin|>"]}},
    }
    path.write_text(json.dumps(tokenizer))
    assert codec(directory).encode("def").count(1) == int(begins)
    assert codec(directory).encode("<|begin|>def").count(1) == 1


def test_a_rendered_chat_is_encoded_with_one_begin_token(tiny_pair: ModelPair, tmp_path: Path) -> None:
    found = codec(copied(tiny_pair, tmp_path, chat_template=CHAT))
    text = found.render_chat([{"role": "user", "content": "hello"}])
    assert text == "<|begin|>[user]hello[assistant]"
    assert found.encode(text).count(1) == 1
    assert found.encode(text)[0] == 1


def test_a_template_in_its_own_file_is_found_and_none_is_none(tiny_pair: ModelPair, tmp_path: Path) -> None:
    directory = copied(tiny_pair, tmp_path)
    assert codec(directory).render_chat([{"role": "user", "content": "x"}]) is None
    (directory / "chat_template.jinja").write_text(CHAT)
    assert codec(directory).render_chat([{"role": "user", "content": "x"}]) == "<|begin|>[user]x[assistant]"


def test_a_conversation_the_template_refuses_is_an_input_error(tiny_pair: ModelPair, tmp_path: Path) -> None:
    found = codec(copied(tiny_pair, tmp_path, chat_template=CHAT))
    with pytest.raises(InputError, match="no such role"):
        found.render_chat([{"role": "nobody", "content": "x"}])


def test_a_directory_without_a_tokenizer_has_no_codec(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert read_codec(Checkpoint(tmp_path)) is None


def test_unreadable_tokenizers_are_refused_with_their_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text('{"version"')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read_codec(Checkpoint(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(CheckpointError, match="transformers"):
        read_codec(Checkpoint(tmp_path))


def test_a_tokenizer_of_another_kind_is_read_by_transformers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "balloon"]))
    found = codec(tmp_path)
    ids = found.encode("red balloon")
    assert ids == [2, 5, 6, 3]
    assert found.decode(ids) == "red balloon"
    assert found.render_chat([{"role": "user", "content": "x"}]) is None


def test_reading_a_tokenizer_does_not_import_transformers(tiny_pair: ModelPair) -> None:
    program = (
        "import sys; from pathlib import Path; from outrider.checkpoint import Checkpoint;"
        "from outrider_adapters.codec import read_codec;"
        "read_codec(Checkpoint(Path(sys.argv[1]))).encode('x'); sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tiny_pair.target)], check=False).returncode == 0
