"""Facts of known collections: complete, consistent with ir_datasets, and found by name."""

import ir_datasets
import pytest

from lmkcli.data import hub_layouts, known_collections
from lmkcli.data.known_collections import KnownCollection
from lmkcli.evaluation.measures import parse_measures

SIZES = {
    "beir": 26, "beir/cqadupstack": 12, "coir": 20, "coir/codesearchnet": 6,
    "coir/codesearchnet-ccr": 6, "conteb": 8, "loco": 12, "longembed": 20, "longembed/needle": 8,
    "longembed/passkey": 8, "miracl": 18, "miracl-hard": 18, "mldr": 13, "msmarco": 2, "mteb-v2": 10,
    "nano-beir": 13, "trec-dl": 4,
}  # fmt: skip


def facts(name: str) -> KnownCollection:
    found = known_collections.facts_of(name)
    assert found is not None
    return found


def test_the_groups_and_their_sizes() -> None:
    assert {
        name: len(known_collections.members(name)) for name in known_collections.groups()
    } == SIZES


def test_a_part_of_a_benchmark_counts_as_one_entry() -> None:
    def entries(name: str) -> set[str]:
        found = [facts(member) for member in known_collections.members(name)]
        return {each.name if each.group == name else each.group for each in found}

    counts = {"beir": 15, "coir": 10, "longembed": 6, "loco": 12}
    assert {name: len(entries(name)) for name in counts} == counts


@pytest.mark.parametrize("name", known_collections.names())
def test_a_row_is_complete(name: str) -> None:
    found = facts(name)
    assert found.name == name
    assert name in known_collections.members(found.group)
    assert found.source in ("irds", "hub")
    assert found.licence
    assert found.citation
    assert parse_measures(list(found.measures))
    assert found.queries


def test_sizes_agree_with_ir_datasets() -> None:
    read = [facts(name) for name in known_collections.names() if facts(name).source == "irds"]
    assert len(read) == 2 + 4 + 26 + 13 + 18
    for found in read:
        dataset = ir_datasets.load(found.name)
        assert (dataset.docs_count(), dataset.queries_count()) == (found.docs, found.queries)


def test_collections_in_which_a_query_finds_its_own_document() -> None:
    itself = {name for name in known_collections.names() if facts(name).drop_self}
    assert {name for name in itself if not name.startswith("loco/")} == {
        "beir/arguana", "beir/quora/test", "mteb-v2/arguana", "nano-beir/arguana", "nano-beir/quora"
    }  # fmt: skip
    assert itself >= set(known_collections.members("loco"))


def test_only_trec_dl_passages_are_relevant_from_grade_two() -> None:
    strict = {name for name in known_collections.names() if facts(name).rel == 2}
    assert strict == {f"msmarco-passage/trec-dl-{year}/judged" for year in (2019, 2020)}
    for name in strict:
        assert all("rel=2" in each for each in facts(name).measures if each != "nDCG@10")


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("irds:beir/arguana", "beir/arguana"),
        ("hf:mldr/en/test,map_ids=1", "mldr/en/test"),
        ("beir/quora", "beir/quora/test"),
        ("mldr/en/dev", "mldr/en/test"),
        ("msmarco-passage/trec-dl-2019", "msmarco-passage/trec-dl-2019/judged"),
    ],
)
def test_alternative_names(spelling: str, name: str) -> None:
    assert facts(spelling).name == name


def test_unknown_names() -> None:
    assert known_collections.facts_of("./beir/arguana") is None
    assert known_collections.facts_of("vaswani") is None
    assert known_collections.members("beir/arguana") == []
    assert known_collections.members("") == []


def test_counts_that_differ_are_reported() -> None:
    assert known_collections.count_differences("beir/scifact/test", 5183, 300) == []
    assert known_collections.count_differences("irds:beir/scifact/test", 5182) == [
        "beir/scifact/test: 5,182 documents found, 5,183 published; is the copy complete?"
    ]
    assert len(known_collections.count_differences("beir/scifact/test", 1, 2)) == 2
    assert known_collections.count_differences("conteb/squad", 7) == []  # no published count
    assert (
        known_collections.count_differences("beir/quora", None, 15000) == []
    )  # a name with other queries
    assert known_collections.count_differences("notes.jsonl", 7) == []


def test_every_name_but_three_has_a_layout_on_the_hub() -> None:
    without = [name for name in known_collections.names() if hub_layouts.layout_of(name) is None]
    assert without == [
        "msmarco-document/dev",
        *(n for n in known_collections.members("trec-dl") if "doc" in n),
    ]
    for found in map(facts, known_collections.names()):
        assert found.source == "irds" or hub_layouts.layout_of(found.name)


def test_a_folder_can_be_a_copy_of_a_known_collection() -> None:
    assert known_collections.facts_of("/data/x,qrels=y,like=beir/arguana") == facts("beir/arguana")
    assert known_collections.facts_of("./x,like=irds:beir/scifact") == facts("beir/scifact/test")
    assert known_collections.facts_of("./beir/arguana,qrels=like") is None
    assert (
        known_collections.count_differences("./x,like=beir/arguana", docs=3) == []
    )  # the copy may be a part
