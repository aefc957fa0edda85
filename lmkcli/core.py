"""The parts of the core: tokenize, encode, index, search, eval and train, and what they need."""

from lmkcli.catalog import (
    CodecRow,
    CrossEncoderRow,
    EngineRow,
    LossRow,
    ModelRow,
    PoolerRow,
    Row,
    SourceRow,
    VerbRow,
)

VERBS = (
    VerbRow(
        "fetch",
        "lmkcli.operations.fetch:Fetch",
        "Download collections and models in advance.",
        group="Prepare",
        examples=(
            "lmk fetch beir/scifact/test",
            "lmk fetch beir -m sentence-transformers/all-MiniLM-L6-v2",
        ),
    ),
    VerbRow(
        "tokenize",
        "lmkcli.operations.tokenize:Tokenize",
        "Convert documents to token ids; print length statistics.",
        group="Prepare",
        examples=(
            "lmk tokenize ./mydocs -m minilm -o tokens/",
            'lmk tokenize --show "some words" -m minilm --pool lmk --gran 2',
        ),
        makes=True,
    ),
    VerbRow(
        "encode",
        "lmkcli.operations.encode:Encode",
        "Encode documents into vectors.",
        group="Prepare",
        examples=(
            "lmk encode ./mydocs -m minilm -o vectors/",
            "lmk encode beir/scifact/test -m MODEL --pool lmk --gran 64 -o vectors/",
        ),
        makes=True,
    ),
    VerbRow(
        "index",
        "lmkcli.operations.index:BuildIndex",
        "Build an index of vectors, or of the words of a collection.",
        group="Prepare",
        examples=(
            "lmk index vectors/ -o index/",
            "lmk index beir/scifact/test --kind bm25 -o bm25/",
        ),
        makes=True,
    ),
    VerbRow(
        "update",
        "lmkcli.operations.update:Update",
        "Update vectors and indexes after a change of their collection.",
        group="Prepare",
        examples=(
            "lmk update corpus.jsonl vectors/ index/",
            "lmk update beir/scifact/test vectors/ index/ bm25/",
        ),
    ),
    VerbRow(
        "compact",
        "lmkcli.operations.compact:Compact",
        "Merge the small parts of updated vectors.",
        group="Prepare",
        examples=("lmk compact vectors/", "lmk compact vectors/ --keep-hours 1"),
    ),
    VerbRow(
        "search",
        "lmkcli.operations.search:Search",
        "Search for queries; fuse and rerank the results.",
        group="Search",
        examples=(
            'lmk search ./mydocs -q "how do I reset it?"',
            "lmk search index/ beir/scifact/test -k 100 -o run.trec",
        ),
        makes=True,
    ),
    VerbRow(
        "eval",
        "lmkcli.operations.eval:Evaluate",
        "Evaluate runs, with significance tests.",
        group="Evaluate",
        examples=(
            "lmk eval run.trec -m nDCG@10 -m R@100",
            "lmk eval bm25.trec dense.trec --baseline bm25.trec",
        ),
    ),
    VerbRow(
        "train",
        "lmkcli.operations.train:Train",
        "Train a retrieval model on examples.",
        group="Train",
        examples=(
            "lmk train pairs.jsonl -m BASE --pool lmk --gran 32,64,128 -o model/",
            "lmk train beir/scifact:train -m BASE --dev beir/scifact/test -o model/",
        ),
        makes=True,
    ),
    VerbRow(
        "show",
        "lmkcli.operations.show:Show",
        "Describe an artifact and its origin; list known names.",
        group="Inspect",
        examples=("lmk show vectors/", "lmk show caches"),
    ),
    VerbRow(
        "verify",
        "lmkcli.operations.verify:Verify",
        "Encode a sample again and compare it with stored vectors.",
        group="Inspect",
        examples=("lmk verify vectors/", "lmk verify vectors/ --sample 1000 --device cpu"),
    ),
    VerbRow(
        "repro",
        "lmkcli.operations.repro:Repro",
        "Repeat recorded steps and compare the results.",
        group="Inspect",
        examples=("lmk repro run.trec", "lmk repro 'scores.jsonl#3' -o again/"),
    ),
    VerbRow(
        "doctor",
        "lmkcli.operations.doctor:Doctor",
        "Check this machine, and print how to fix problems.",
        group="Inspect",
        examples=("lmk doctor", "lmk doctor --thorough --json"),
    ),
)

SOURCES = (
    SourceRow(
        "files",
        "lmkcli.data.sources.file_collections:open_files",
        "a BEIR folder, or csv, json, jsonl, tsv, parquet, mbox, stdin",
    ),
    SourceRow(
        "memory",
        "lmkcli.data.sources.memory:open_memory",
        "tables, texts and records of a Python program",
        prefixes=("memory:",),
        holds="lmkcli.data.sources.memory:held_name",
    ),
    SourceRow(
        "irds",
        "lmkcli.data.sources.irds_collections:open_irds",
        "any ir_datasets id, such as beir/scifact/test",
        prefixes=("irds:",),
    ),
    SourceRow(
        "hub",
        "lmkcli.data.sources.hub:open_hub",
        "known collections of the Hugging Face hub, such as mldr/en/test (groups below)",
        prefixes=("hf:",),
    ),
    SourceRow(
        "dataset",
        "lmkcli.data.sources.dataset:open_dataset",
        "any dataset of the Hugging Face hub, streamed: hf:owner/name,split=train",
        "datasets",
        "datasets",
    ),
)

POOLERS = (
    PoolerRow("cls", "lmkcli.pooling.table:CLS", "the state of the first special token"),
    PoolerRow(
        "last", "lmkcli.pooling.table:LAST", "the state of the last position (decoders: EOS)"
    ),
    PoolerRow(
        "mean", "lmkcli.pooling.table:MEAN", "the mean over all positions, specials included"
    ),
    PoolerRow(
        "max", "lmkcli.pooling.table:MAX", "the maximum over all positions, in each dimension"
    ),
    PoolerRow(
        "mean-sqrt-len",
        "lmkcli.pooling.table:MEAN_SQRT_LEN",
        "the sum over all positions, divided by the root of their number",
    ),
    PoolerRow(
        "weightedmean",
        "lmkcli.pooling.table:WEIGHTED_MEAN",
        "the mean over all positions, weighted by their numbers (SGPT)",
    ),
    PoolerRow("mean@k", "lmkcli.pooling.table:every_kth", "the mean over every k-th position"),
    PoolerRow(
        "latent",
        "lmkcli.pooling.table:LATENT",
        "the mean after the model's latent attention",
        weights="latent_attn_model",
    ),
    PoolerRow(
        "model",
        "lmkcli.pooling.table:MODEL",
        "the single vector that the model itself returns",
    ),
    PoolerRow("multicls", "lmkcli.pooling.table:MULTICLS", "a CLS before every chunk, averaged"),
    PoolerRow("lmk", "lmkcli.pooling.table:LMK", "a landmark after every chunk, averaged"),
)

MODELS = (
    ModelRow(
        "transformer", "lmkcli.models.transformer:open_model", "any Hugging Face encoder or decoder"
    ),
    CrossEncoderRow(
        "crossencoder",
        "lmkcli.models.crossencoder:open_cross_encoder",
        "any sequence classifier, as a reranker",
    ),
)

CODECS = (
    CodecRow("fp16", "lmkcli.vectors.dense_codecs:FP16", "a number of 16 bits for each dimension"),
    CodecRow("fp32", "lmkcli.vectors.dense_codecs:FP32", "a number of 32 bits for each dimension"),
    CodecRow("int8", "lmkcli.vectors.dense_codecs:INT8", "8 bits for each dimension, and a scale"),
    CodecRow("int4", "lmkcli.vectors.dense_codecs:INT4", "4 bits for each dimension, and a scale"),
    CodecRow("int2", "lmkcli.vectors.dense_codecs:INT2", "2 bits for each dimension, and a scale"),
    CodecRow(
        "binary", "lmkcli.vectors.dense_codecs:BINARY", "a bit for each dimension, and a scale"
    ),
)

_FAISS = "lmkcli.retrieval.engines.faiss"


def _faiss(name: str, text: str, factory: str = "") -> EngineRow:
    return EngineRow(
        name,
        f"{_FAISS}.faiss_engine:Faiss",
        text,
        "faiss-cpu",
        "faiss",
        variant="vectors",
        settings=f"{_FAISS}.faiss_settings:FaissSettings",
        search_settings=f"{_FAISS}.faiss_settings:FaissSearchSettings",
        factory=factory,
    )


ENGINES = (
    EngineRow(
        "exact",
        "lmkcli.retrieval.engines.exact.exact_search:Exact",
        "no index: compares the query with every vector",
    ),
    _faiss("hnsw", "FAISS HNSW graph", factory="FAISS factory string"),
    _faiss("ivf", "FAISS inverted lists"),
    _faiss("int8", "FAISS scalar quantisation, one byte per dimension"),
    _faiss("binary", "FAISS binary codes, one bit per dimension"),
    _faiss("pq", "FAISS product quantisation, one byte per 8 dimensions"),
    EngineRow(
        "bm25",
        "lmkcli.retrieval.engines.bm25.bm25_engine:Bm25",
        "lexical BM25 (bm25s, no Java)",
        variant="lexical",
        settings="lmkcli.retrieval.lexical.lexical_settings:LexicalSettings",
        search_settings="lmkcli.retrieval.lexical.lexical_settings:FeedbackSettings",
    ),
)

LOSSES = (
    LossRow(
        "infonce",
        "lmkcli.training.objectives.infonce:InfoNCE",
        "contrast the positive with all passages of the batch; MaxSim for texts with several vectors",
        settings=("temperature", "symmetric"),
        scored=("threshold",),
    ),
    LossRow(
        "m3-kd",
        "lmkcli.training.objectives.m3_kd:M3Distillation",
        "distillation of BGE-M3: InfoNCE of every passage, weighted by the teacher",
        settings=("temperature",),
        needs=("teacher",),
    ),
    LossRow(
        "kl",
        "lmkcli.training.objectives.kl:KL",
        "KL divergence from the teacher over a query's passages, plus InfoNCE (kl:infonce=0: without)",
        settings=("temperature",),
        needs=("teacher",),
    ),
    LossRow(
        "late-kd",
        "lmkcli.training.objectives.late_kd:LateDistillation",
        "distillation for late interaction, scores scaled to 0 … 1 (PyLate)",
        needs=("teacher",),
    ),
    LossRow(
        "margin-mse",
        "lmkcli.training.objectives.margin_mse:MarginMSE",
        "squared error of the margins to the teacher's margins (margin-mse:pairs=all: of all pairs)",
        needs=("teacher", "negatives"),
        single=True,
    ),
    LossRow(
        "opl",
        "lmkcli.training.objectives.orthogonal:Orthogonal",
        "orthogonal projection loss: cosine 1 for positives, 0 for negatives (M2-BERT)",
        single=True,
    ),
    LossRow(
        "prediction",
        "lmkcli.training.objectives.prediction:Prediction",
        "predict the vectors of a teacher (M2-BERT)",
        needs=("targets",),
        single=True,
    ),
    LossRow(
        "insent",
        "lmkcli.training.objectives.insent:InSeNT",
        "contrast a chunk with chunks of its own and of other documents (ConTEB)",
        settings=("temperature",),
        needs=("sequence",),
        single=True,  # one document has several chunks
    ),
)

ROWS: tuple[Row, ...] = (*VERBS, *SOURCES, *POOLERS, *MODELS, *CODECS, *ENGINES, *LOSSES)
