"""The pair that reads digits as a package's part: found by name, small, complete, and keeping its contract."""

from __future__ import annotations

from outrider import registry
from outrider.checkpoint import Checkpoint
from outrider.conformance import check_draft, check_target
from outrider.types import HiddenTap, MediaView
from outrider_adapters.pairs import tiny_llava
from outrider_backends.sdpa import SdpaBackend
from tests.multimodal.pair import seeing_pair


def test_it_is_found_by_name_where_the_package_is() -> None:
    pair = registry.pair("tiny-llava")
    assert pair == tiny_llava()
    assert [Checkpoint(directory).architectures for directory in (pair.target, *pair.drafts)] == [
        ("LlavaForConditionalGeneration",),
        ("LlamaForCausalLMEagle3",),
    ]


def test_it_takes_no_more_than_8_megabytes() -> None:
    pair = tiny_llava()
    files = [file for directory in (pair.target, *pair.drafts) for file in directory.iterdir()]
    assert sum(file.stat().st_size for file in files) <= 8_000_000
    assert {file.suffix for file in files} == {".json", ".safetensors", ".jinja"}


def test_its_files_leave_nothing_open() -> None:
    pair, draft = seeing_pair(), seeing_pair().draft.spec
    assert (pair.target.notes, draft.notes) == ((), ())
    assert draft.taps == tuple(HiddenTap.at(boundary) for boundary in (1, 2, 3))
    assert draft.media is MediaView.TARGET_EMBEDDING


def test_it_conforms() -> None:
    pair = seeing_pair()
    check_target(pair.target, attention=SdpaBackend())
    check_draft(pair.draft, pair.target, attention=SdpaBackend())
