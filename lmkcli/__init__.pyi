"""The public names of lmk. `python docs/stub.py` writes this file."""

from collections.abc import Sequence
from lmkcli.data.collection import Collection as Collection
from lmkcli.data.collection import Doc as Doc
from lmkcli.data.collection import Qrel as Qrel
from lmkcli.data.collection import Query as Query
from lmkcli.data.collection import Source as Source
from lmkcli.data.collection import open_collection as open_collection
from lmkcli.data.run import Ranking as Ranking
from lmkcli.data.run import Run as Run
from lmkcli.data.run import read_run as read_run
from lmkcli.data.run import write_run as write_run
from lmkcli.encoding.text_encoder import TextEncoder as TextEncoder
from lmkcli.encoding.text_encoder import encode_collection as encode_collection
from lmkcli.encoding.text_encoder import load_encoder as load_encoder
from lmkcli.errors import LmkError as LmkError
from lmkcli.evaluation.measures import Scores as Scores
from lmkcli.evaluation.measures import evaluate as evaluate
from lmkcli.evaluation.measures import parse_measures as parse_measures
from lmkcli.operations.compact import Compact as _Compact
from lmkcli.operations.compact import Compacted
from lmkcli.operations.doctor import Diagnosed
from lmkcli.operations.doctor import Doctor as _Doctor
from lmkcli.operations.encode import Encode as _Encode
from lmkcli.operations.encode import Encoded
from lmkcli.operations.eval import Evaluate as _Evaluate
from lmkcli.operations.eval import Evaluated
from lmkcli.operations.fetch import Fetch as _Fetch
from lmkcli.operations.fetch import Fetched
from lmkcli.operations.index import BuildIndex as _BuildIndex
from lmkcli.operations.index import Built
from lmkcli.operations.repro import Repro as _Repro
from lmkcli.operations.repro import Reproduced
from lmkcli.operations.search import Hit as Hit
from lmkcli.operations.search import Hits as Hits
from lmkcli.operations.search import OpenIndex as OpenIndex
from lmkcli.operations.search import Search as _Search
from lmkcli.operations.search import Searched
from lmkcli.operations.show import Show as _Show
from lmkcli.operations.tokenize import Tokenize as _Tokenize
from lmkcli.operations.tokenize import Tokenized
from lmkcli.operations.train import Train as _Train
from lmkcli.operations.train import Trained
from lmkcli.operations.update import Update as _Update
from lmkcli.operations.update import Updated
from lmkcli.operations.verify import Verified
from lmkcli.operations.verify import Verify as _Verify
from lmkcli.plugins.analysis.analyze import Analysis
from lmkcli.plugins.analysis.analyze import Analyze as _Analyze
from lmkcli.plugins.analysis.plot import Plot as _Plot
from lmkcli.plugins.analysis.plot import Plotted
from lmkcli.plugins.browse.browse import Browse as _Browse
from lmkcli.plugins.browse.browse import Browsing
from lmkcli.plugins.demo.demo import Demo as _Demo
from lmkcli.plugins.demo.demo import Demonstrated
from lmkcli.plugins.exchange.export import Export as _Export
from lmkcli.plugins.exchange.export import Exported
from lmkcli.plugins.exchange.import_ import Import as _Import
from lmkcli.plugins.exchange.import_ import Imported
from lmkcli.plugins.grid.grid import Grid as _Grid
from lmkcli.plugins.pretrain.pretrain import Pretrain as _Pretrain
from lmkcli.plugins.serve.serve import Serve as _Serve
from lmkcli.progress import Report
from lmkcli.retrieval.index import Index as Index
from lmkcli.retrieval.open_settings import OpenSettings as OpenSettings
from lmkcli.spec.recipe import RecipeOptions as RecipeOptions
from lmkcli.spec.result import Result
from lmkcli.spec.settings import EncodeSettings as EncodeSettings
from lmkcli.spec.values import Shard
from lmkcli.vectors.rows import Ragged as Ragged
from lmkcli.vectors.stored import Vectors as Vectors
from pathlib import Path
from typing import Any, Literal

__version__: str

class Analyze(_Analyze):
    """Inspect models, vectors and collections; with -o, draw a figure (extra plot).

    attention: positions of a text that its pooled tokens attend to. landmarks: share of landmarks with a
    neighbouring chunk among their nearest chunks. lengths: lengths of documents. map: vectors in two
    dimensions. similarity: cosines between the chunks of one document. FIGURE.json contains the numbers and
    the inputs of a figure.

    Args:
        what: The analysis: attention, landmarks, lengths, map or similarity.
        source: A collection; map, similarity: a vectors folder.
        models: The model. attention: repeatable, one line per model; lengths: count its tokens instead
            of words.
        docs: Number of documents. Default: 20; map: 2000.
        output: Output path of the figure; without a suffix, .svg is added.
        pools: Pooling. attention: repeatable, one line per pooler. Default: auto, lmk.
        gran: attention, landmarks: granularity, the length of chunks: a number of tokens, 'sentence' or
            'given'.
        max_length: attention, landmarks: maximum number of positions of a document.
        min_tokens: attention, landmarks: minimum number of tokens of a document.
        doc: similarity: id of the document.
        dtype: Compute dtype; auto: bf16 if the hardware supports it natively.
        device: Device: auto, cpu, cuda or cuda:1.
        trust_remote_code: Run Python code that comes with the model.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
        layers: attention: the last layer, the mean over all layers, or each layer separately.
        bins: attention: number of intervals that a document is divided into.
        by: map: color of a dot: doc, chunk (its number), or a field of the records. lengths: chunk
            (given chunks) or positive (of a file of examples), and characters, such as
            positive,characters.
        method: map: projection: pca, or tsne and umap (extra umap).
    """
    def __init__(
        self,
        what: Literal['attention', 'landmarks', 'lengths', 'map', 'similarity'],
        source: Source,
        *,
        models: str | Path | Sequence[str | Path] | None = None,
        docs: int | None = None,
        output: str | Path | None = None,
        pools: str | Sequence[str] | None = None,
        gran: int | str | None = None,
        max_length: int | None = None,
        min_tokens: int = 200,
        doc: str | None = None,
        dtype: Literal['auto', 'fp32', 'bf16', 'fp16'] = 'auto',
        device: str = 'auto',
        trust_remote_code: bool = False,
        offline: bool = False,
        layers: Literal['last', 'mean', 'each'] = 'last',
        bins: int = 20,
        by: str = '',
        method: Literal['pca', 'tsne', 'umap'] = 'pca',
    ) -> None: ...
    def run(self, report: Report | None = None) -> Analysis:
        """Execute the operation, and return its result."""


class Browse(_Browse):
    """Write one HTML file to explore one run, or to compare several runs of the same queries.

    The page lists the queries by the difference of a measure, and shows rankings next to each other, judged
    documents, and passages. It needs no other file and no network. The measures are those of lmk eval.

    Texts come from the index that the manifest of a run names, and from the collection of the queries. Runs
    of other tools need --collection, and --qrels if the collection has no judgements.

    Args:
        runs: TREC runs, or folders of runs made by lmk; qrels may come first, as in trec_eval.
        qrels: Judgements: a qrels file or a collection, once for all runs or once per run. Default: the
            collection recorded with each run.
        measure: Measures, in the notation of ir-measures; repeatable. Default: the measures of a known
            collection, else nDCG@10, R@100, RR@10.
        collection: The collection with the texts of queries and documents. Default: the index of each
            run, and the collection recorded with the runs.
        k: Number of documents of each ranking.
        sample: Show at most this many queries, drawn at random. Default: 1000; fewer for many runs.
        output: File for the page (.html).
        drop_self: First remove documents with the same id as the query; auto: for known collections
            that need it (ArguAna, Quora, LoCo).
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
        name: Name of a run, once per run in their order; repeatable.
        passages: Mark the passage that decided, for runs over chunks. Vectors need their model for
            this.
    """
    def __init__(
        self,
        runs: str | Path | Sequence[str | Path],
        *,
        qrels: Source | Sequence[str | Path] | None = None,
        measure: str | Sequence[str] | None = None,
        collection: Source | None = None,
        k: int = 20,
        sample: int | None = None,
        output: str | Path | None = None,
        drop_self: Literal['auto', 'yes', 'no'] = 'auto',
        offline: bool = False,
        name: str | Sequence[str] | None = None,
        passages: bool = True,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Browsing:
        """Execute the operation, and return its result."""


class BuildIndex(_BuildIndex):
    """Build an index of vectors, or of a collection (BM25). Exact search needs none.

    Args:
        source: A vectors folder; for bm25, lucene a collection.
        kind: Index kind: hnsw, ivf, int8, binary, pq, bm25, lucene, milvus, inverted, seismic, or a
            FAISS factory string such as OPQ64,IVF4096,PQ64.
        uri: milvus: a file such as ./milvus.db, or http://host:19530.
        language: bm25, lucene: language of the stemmer and the stop words, such as en, de or hi.
        max_memory: Stop with an error if building needs more memory than this, such as 16GB. Default:
            free memory.
        output: Output path.
        m: HNSW: links per vector (M); the lowest level has twice as many.
        ef_construction: HNSW: candidates kept while building (efConstruction).
        collection: milvus: name of the collection.
        index_type: milvus: index type in Milvus; FLAT compares every vector.
        k1: bm25, lucene: term saturation.
        b: bm25, lucene: length normalisation.
        stemmer: bm25, lucene: another stemmer, such as porter, or none.
        unit: bm25, lucene: index documents or chunks.
        gran: bm25, lucene: granularity, the length of chunks: a number of words, 'sentence', or 'given'
            (as the collection defines).
        context: bm25, lucene: text to add before each chunk: title, headings (Markdown, HTML), or
            field:NAME.
        docvectors: lucene: store document terms for rm3 and rocchio.
        muvera: Index one encoding of each document's vectors, such as 20x5x16 (MUVERA).
        fields: bm25, lucene: text fields of a record, joined by '+', such as headline+body.
        map_ids: bm25, lucene: replace white space in ids by '_'.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
        stopwords_file: bm25, lucene: a file of stop words, one per line; or none.
        shard: ivf and other lists: build shard i/n of the vectors; the same command without shard joins
            the shards.
        apart: When joining shards: keep one file per shard; they are searched as one index.
        allow_incomplete: Index the finished shards; ignore unfinished ones.
        if_exists: If the output exists: continue it, fail, replace it, or update it.
    """
    def __init__(
        self,
        source: Source,
        *,
        kind: str = 'hnsw',
        uri: str = '',
        language: str = 'en',
        max_memory: int | str = '0',
        output: str | Path | None = None,
        m: int = 32,
        ef_construction: int = 200,
        collection: str = '',
        index_type: Literal['AUTOINDEX', 'HNSW', 'FLAT'] = 'AUTOINDEX',
        k1: float = 0.9,
        b: float = 0.4,
        stemmer: str = '',
        unit: Literal['doc', 'chunk'] = 'doc',
        gran: str = '',
        context: str = '',
        docvectors: bool = False,
        muvera: str = '',
        fields: str = '',
        map_ids: bool = False,
        offline: bool = False,
        stopwords_file: str | Path | None = None,
        shard: str | Shard | None = None,
        apart: bool = False,
        allow_incomplete: bool = False,
        if_exists: Literal['resume', 'fail', 'overwrite', 'update'] = 'resume',
    ) -> None: ...
    def run(self, report: Report | None = None) -> Built:
        """Execute the operation, and return its result."""


class Compact(_Compact):
    """Merge small parts, and parts with deleted rows, into parts of about 256 MB.

    Old parts are deleted after --keep-hours. Until then, running searches, and indexes that were not updated
    yet, can read them.

    Args:
        vectors: An updated vectors folder.
        keep_hours: Hours to keep an old part after the last generation that contains it.
    """
    def __init__(
        self,
        vectors: str | Path,
        *,
        keep_hours: float = 24.0,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Compacted:
        """Execute the operation, and return its result."""


class Demo(_Demo):
    """Run the main steps on a real collection with a real model, offline. The first answer takes seconds.

    The collection is a part of the standard library of Python, or all of it with --full: given the first
    sentence of a docstring, find its function. The model is mean-minilm (extra `demo`). The last part
    searches whole modules. Its question has an answer that the base model, all-MiniLM-L6-v2, misses, because
    it reads only the start of each module.

    Args:
        folder: Folder for the artifacts, which are kept.
        full: Use the whole standard library, and tokenize it first; half a minute to a few minutes.
    """
    def __init__(
        self,
        folder: str | Path = 'lmk-demo',
        *,
        full: bool = False,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Demonstrated:
        """Execute the operation, and return its result."""


class Doctor(_Doctor):
    """Check this machine, and print how to fix problems.

    It checks libraries, extras, threads, GPUs, caches, Java and SLURM. It downloads nothing, and imports few
    libraries. Exit code 4 means that a part is broken. A missing optional part is not broken.

    Args:
        thorough: Also import every library, to find broken ones; takes seconds.
    """
    def __init__(
        self,
        *,
        thorough: bool = False,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Diagnosed:
        """Execute the operation, and return its result."""


class Encode(_Encode):
    """Encode documents into vectors. Stop it at any time; the same command continues.

    lmk stores the recipe (model, pooling, prompts and lengths, for documents and for queries) with the
    vectors, so lmk search needs none of these flags.

    Args:
        source: A collection, or a tokens folder.
        model: A model folder, a hub name, mean-minilm, lmk-minilm or minilm (extra demo).
        pool: auto (from the model folder), cls, last, mean, mean@k, multicls, lmk, latent, or another
            (lmk show poolers).
        gran: Granularity, the length of chunks: a number of tokens, 'sentence', or 'given' (as the
            collection defines).
        unit: The text that one vector represents: doc, chunk or token. Default: doc.
        window: The text that the model reads at once: full (truncated), chunk, N positions, or even:N
            (about equally long). Default: from the model, else full.
        max_length: Positions of a document, special tokens included.
        output: Folder for the vectors.
        revision: Branch, tag or commit of a hub model.
        trust_remote_code: Run Python code that comes with the model.
        overlap: Overlap with the previous window: tokens (128) or chunks (10c).
        context: Text to add before each chunk that is encoded alone: title, headings (Markdown, HTML),
            or field:NAME.
        extend: Extend the positions of the model up to max_length: grouped, interpolate or recurrent
            (tables of positions), ntk or selfextend (rotary).
        pad_to_max: Models that read padding: pad every input to the full length of the model.
        query_max_length: Positions of a query, special tokens included.
        query_prompt: Text to add before every query.
        doc_prompt: Text to add before every document.
        dim: Number of leading dimensions to keep (Matryoshka).
        normalize: Normalise vectors to unit length.
        top_terms: Sparse vectors: number of terms of a document to keep, those of the largest weights.
            Default: all.
        query_top_terms: Sparse vectors: number of terms of a query to keep. Default: all.
        sum_windows: Sparse vectors: add the weights of a term in all windows, instead of their maximum.
        dtype: Compute dtype; auto: bf16 if the hardware supports it natively.
        store_dtype: Stored form of the vectors: fp16, fp32, int8, int4, int2, binary (the last four: 8,
            4, 2 bits or one per dimension).
        device: Device: auto, cpu, cuda, cuda:1, all.
        batch_tokens: Positions per forward pass; 0: chosen for the model and the device.
        batch_size: Maximum number of inputs per forward pass.
        workers: Processes that tokenize texts, next to one that reads them; 0: none. Default: by cores
            on a GPU, else 0.
        on_overflow: Texts that are too long: truncate and count them, or stop with an error.
        store_text: Store titles and texts with the vectors.
        fields: Text fields of a record, joined by '+', such as headline+body.
        map_ids: Replace white space in ids by '_'.
        shard: Process shard i/n of the collection, such as $SLURM_ARRAY_TASK_ID/16.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
        only: Encode only the documents in this run.
        if_exists: If the output exists: continue it, fail, replace it, or update it.
        dry_run: Count documents, time a sample and print the plan; write nothing.
    """
    def __init__(
        self,
        source: Source,
        *,
        model: str | Path,
        pool: str = 'auto',
        gran: int | str | None = None,
        unit: str | None = None,
        window: int | str | None = None,
        max_length: int | None = None,
        output: str | Path | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        overlap: int | str | None = None,
        context: str | None = None,
        extend: str | None = None,
        pad_to_max: bool | None = None,
        query_max_length: int | None = None,
        query_prompt: str | None = None,
        doc_prompt: str | None = None,
        dim: int | None = None,
        normalize: bool | None = None,
        top_terms: int | None = None,
        query_top_terms: int | None = None,
        sum_windows: bool | None = None,
        dtype: Literal['auto', 'fp32', 'bf16', 'fp16'] = 'auto',
        store_dtype: str = 'fp16',
        device: str = 'auto',
        batch_tokens: int = 0,
        batch_size: int = 512,
        workers: int | None = None,
        on_overflow: Literal['truncate', 'error'] = 'truncate',
        store_text: bool = True,
        fields: str = '',
        map_ids: bool = False,
        shard: str | Shard = '0/1',
        offline: bool = False,
        only: str | Path | None = None,
        if_exists: Literal['resume', 'fail', 'overwrite', 'update'] = 'resume',
        dry_run: bool = False,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Encoded:
        """Execute the operation, and return its result."""


class Evaluate(_Evaluate):
    """Evaluate runs. Judged queries that are missing from a run count as 0 and are reported.

    Without --qrels, lmk uses the judgements of the collection that provided the queries of the run. For runs
    on several collections, it prints a table of systems x collections with arithmetic and geometric means.
    With --baseline or --all-pairs, each difference has a 95 % bootstrap interval, wins/ties/losses, and the
    p-values of a paired t-test and a randomisation test.

    Args:
        runs: TREC runs, or folders of runs made by lmk; qrels may come first, as in trec_eval.
        qrels: Judgements: a qrels file or a collection, once for all runs or once per run. Default: the
            collection recorded with each run.
        measure: Measures, in the notation of ir-measures; repeatable. Default: the measures of a known
            collection, else nDCG@10, R@100, RR@10.
        baseline: Compare every other run with this run, query by query, with significance tests.
        form: Format of the table.
        log: Append each result with its provenance to this JSON Lines file.
        drop_self: First remove documents with the same id as the query; auto: for known collections
            that need it (ArguAna, Quora, LoCo).
        strict: Exit with code 4 if a judged query is missing from a run.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
        name: Name of a row, once per run in their order; repeatable.
        per_query: Print one row per query.
        all_pairs: Compare every run with every other run.
        correction: Correction of the p-values for multiple tests. Default: holm.
        by: Break scores down by length (words of the relevant documents), tokens:MODEL, query-length,
            or a property of the queries that the collection provides, such as position or language.
        bins: Edges of the groups for by, such as 0,512,2048,8192. Default: quartiles of the queries.
        ir_metadata: Write the metadata of each run as YAML (ir-metadata) next to the run.
        plot: Draw the means with intervals; with baseline the differences per query, with by a curve
            over the groups (.png, .svg or .pdf; extra plot).
    """
    def __init__(
        self,
        runs: str | Path | Sequence[str | Path],
        *,
        qrels: Source | Sequence[str | Path] | None = None,
        measure: str | Sequence[str] | None = None,
        baseline: str | None = None,
        form: Literal['table', 'json', 'markdown', 'csv', 'latex'] = 'table',
        log: str | Path | None = None,
        drop_self: Literal['auto', 'yes', 'no'] = 'auto',
        strict: bool = False,
        offline: bool = False,
        name: str | Sequence[str] | None = None,
        per_query: bool = False,
        all_pairs: bool = False,
        correction: Literal['holm', 'bonferroni', 'bh'] | None = None,
        by: str | None = None,
        bins: str | None = None,
        ir_metadata: bool = False,
        plot: str | Path | None = None,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Evaluated:
        """Execute the operation, and return its result."""


class Export(_Export):
    """Export vectors or training examples for other tools; with -m, a model.

    A model becomes a folder for sentence-transformers, an ONNX graph, or a folder with a model card for the
    Hugging Face hub. The result is a folder with a manifest of its inputs. The folder is either complete or
    does not exist.

    Args:
        source: A vectors folder; for tevatron-train a source of examples, as for lmk train.
        to: The tool or the file format to write for: numpy, parquet, pyserini, tevatron, tevatron-
            train, sentence-transformers, onnx, hub, anserini-json.
        model: A model folder, a hub name, mean-minilm, lmk-minilm or minilm (extra demo).
        pool: auto (from the model folder), cls, last, mean, mean@k, multicls, lmk, latent, or another
            (lmk show poolers).
        gran: Granularity, the length of chunks: a number of tokens, 'sentence', or 'given' (as the
            collection defines).
        window: The text that the model reads at once: full (truncated), chunk, N positions, or even:N
            (about equally long). Default: from the model, else full.
        max_length: Positions of a document, special tokens included.
        output: Output path.
        revision: Branch, tag or commit of a hub model.
        trust_remote_code: Run Python code that comes with the model.
        query_max_length: Positions of a query, special tokens included.
        query_prompt: Text to add before every query.
        doc_prompt: Text to add before every document.
        normalize: Normalise vectors to unit length.
        if_exists: If the output exists: continue it, fail, or replace it.
        landmark_transformer: Write the module LandmarkTransformer, which is proposed for sentence-
            transformers, instead of modules of lmkcli.
        log: A score log of lmk eval: its scores of the model go into the card.
        repo: Upload the folder to this repository, such as name/model; by default, nothing is uploaded.
        private: Create the repository as a private one.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
    """
    def __init__(
        self,
        source: Source | None = None,
        *,
        to: Literal['numpy', 'parquet', 'pyserini', 'tevatron', 'tevatron-train', 'sentence-transformers', 'onnx', 'hub', 'anserini-json'],
        model: str | Path = '',
        pool: str = 'auto',
        gran: int | str | None = None,
        window: int | str | None = None,
        max_length: int | None = None,
        output: str | Path | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        query_max_length: int | None = None,
        query_prompt: str | None = None,
        doc_prompt: str | None = None,
        normalize: bool | None = None,
        if_exists: Literal['resume', 'fail', 'overwrite'] = 'resume',
        landmark_transformer: bool = False,
        log: str | Path | None = None,
        repo: str | None = None,
        private: bool = False,
        offline: bool = False,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Exported:
        """Execute the operation, and return its result."""


class Fetch(_Fetch):
    """Download collections (ir_datasets, the hub) and models once, before many jobs need them.

    Existing files are left unchanged. Concurrent downloads of the same files wait for each other.

    Args:
        names: Names of collections or groups.
        model: A model by its hub name; repeatable.
        revision: Branch, tag or commit of a hub model.
    """
    def __init__(
        self,
        names: Source | Sequence[str | Path] | None = None,
        *,
        model: str | Path | Sequence[str | Path] | None = None,
        revision: str | None = None,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Fetched:
        """Execute the operation, and return its result."""


class Grid(_Grid):
    """Run all combinations of the settings in a file, each shared step once, and print a table of the scores.

    Axes are the flags of encode, index, search, eval and train. Stop it at any time; the same command
    continues. A failed cell does not stop the others; the final error lists the failed cells (exit code 4).

    Args:
        file: A TOML file with a table [grid] of axes.
        output: Folder for the results.
        only: Run only the cells of this name, with '*' as a wildcard; repeatable.
        jobs: Number of commands to run at the same time.
        dry_run: Print the cells, their shared steps, disk and time; run and write nothing.
        slurm: Submit the missing steps to SLURM, as job arrays with dependencies; see [slurm].
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
        rows: Axes that form the rows, such as pool,gran. Default: all varying axes that are not
            columns.
        columns: Axes that form the columns, or 'benchmark'. Default: collection.
        baseline: The row to compare all other rows with, such as pool=cls; repeatable.
        correction: Correction of the p-values for multiple tests.
        form: Format of the table.
    """
    def __init__(
        self,
        file: str | Path,
        *,
        output: str | Path | None = None,
        only: str | Sequence[str] | None = None,
        jobs: int = 1,
        dry_run: bool = False,
        slurm: bool = False,
        offline: bool = False,
        rows: str = '',
        columns: str = '',
        baseline: str | Sequence[str] | None = None,
        correction: Literal['holm', 'bonferroni', 'bh'] = 'holm',
        form: Literal['table', 'json', 'markdown', 'csv', 'latex'] = 'table',
    ) -> None: ...
    def run(self, report: Report | None = None) -> Result:
        """Execute the operation, and return its result."""


class Import(_Import):
    """Convert vectors from another tool to a vectors folder, which can be indexed, searched and exported.

    -m and the flags of the recipe describe how the vectors were made. lmk encodes queries in the same way.
    Without a model, the vectors cannot be searched with text.

    Args:
        source: A file or a folder, depending on from.
        origin: The tool or format of the vectors: numpy, pyserini, anserini-json.
        model: A model folder, a hub name, mean-minilm, lmk-minilm or minilm (extra demo).
        pool: auto (from the model folder), cls, last, mean, mean@k, multicls, lmk, latent, or another
            (lmk show poolers).
        gran: Granularity, the length of chunks: a number of tokens, 'sentence', or 'given' (as the
            collection defines).
        unit: The text that one vector represents: doc, chunk or token. Default: doc.
        max_length: Positions of a document, special tokens included.
        output: Output path.
        revision: Branch, tag or commit of a hub model.
        trust_remote_code: Run Python code that comes with the model.
        query_max_length: Positions of a query, special tokens included.
        query_prompt: Text to add before every query.
        doc_prompt: Text to add before every document.
        dim: Number of leading dimensions to keep (Matryoshka).
        normalize: Normalise vectors to unit length.
        top_terms: Sparse vectors: number of terms of a document to keep, those of the largest weights.
            Default: all.
        query_top_terms: Sparse vectors: number of terms of a query to keep. Default: all.
        scale: anserini-json: the numbers of the files are the weights times N. Default: 100, for whole
            numbers.
        if_exists: If the output exists: continue it, fail, or replace it.
        ids: numpy: a file with the ids of the rows, one per line.
        map_ids: Replace white space in ids by '_'.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
    """
    def __init__(
        self,
        source: str | Path,
        *,
        origin: Literal['numpy', 'pyserini', 'anserini-json'],
        model: str | Path = '',
        pool: str = 'auto',
        gran: int | str | None = None,
        unit: str | None = None,
        max_length: int | None = None,
        output: str | Path | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        query_max_length: int | None = None,
        query_prompt: str | None = None,
        doc_prompt: str | None = None,
        dim: int | None = None,
        normalize: bool | None = None,
        top_terms: int | None = None,
        query_top_terms: int | None = None,
        scale: float | None = None,
        if_exists: Literal['resume', 'fail', 'overwrite'] = 'resume',
        ids: str | Path | None = None,
        map_ids: bool = False,
        offline: bool = False,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Imported:
        """Execute the operation, and return its result."""


class Plot(_Plot):
    """Draw the scores of a log over a parameter, as curves (extra `plot`).

    lmk looks up the parameter in the record of each run: first in the recipe, the index and the search, then
    in the commands. The suffix of the output selects PNG, SVG or PDF. For model folders, lmk draws the
    loss, the learning rate and the scores of development sets over the steps, also during training.

    Args:
        logs: A score log (lmk eval log), results of lmk grid, or folders of lmk train and lmk pretrain.
        output: Output path of the figure (.png, .svg or .pdf).
        x: The parameter on the x axis, by the name of its flag: gran, max-length, dim, k, ef-search, k1
            …
        measure: Measures to draw; repeatable. Default: all.
        by: Another parameter: draw one line per value of it.
        panels: Draw a panel for each measure, or for each collection and measure.
    """
    def __init__(
        self,
        logs: str | Path | Sequence[str | Path],
        *,
        output: str | Path | None = None,
        x: str | None = None,
        measure: str | Sequence[str] | None = None,
        by: str | None = None,
        panels: Literal['measure', 'collection'] = 'measure',
    ) -> None: ...
    def run(self, report: Report | None = None) -> Plotted:
        """Execute the operation, and return its result."""


class Pretrain(_Pretrain):
    """Pre-train an encoder on texts: masked tokens, RetroMAE, DupMAE, or the objectives of TITE.

    --pool selects the pooling of the vector that RetroMAE and DupMAE decode, such as landmarks. You can stop
    a training at any time; the same command continues.

    Args:
        sources: Collections or tokens folders; NAME,weight=0.3 sets the weight of one.
        model: A model folder, a hub name, mean-minilm, lmk-minilm or minilm (extra demo).
        pool: auto (from the model folder), cls, last, mean, mean@k, multicls, lmk, latent, or another
            (lmk show poolers).
        gran: Granularity, the length of chunks: a number of tokens, 'sentence', or 'given' (as the
            collection defines).
        max_length: Positions of a document, special tokens included.
        batch_size: Queries or texts per batch, over all processes.
        epochs: Passes over the data, unless steps is given.
        lr: Peak learning rate.
        objective: The objective: mlm, retromae, dupmae and others (lmk show pretexts).
        output: Folder for the model.
        revision: Branch, tag or commit of a hub model.
        trust_remote_code: Run Python code that comes with the model.
        pad_to_max: Models that read padding: pad every input to the full length of the model.
        architecture: Create a model with random weights: a config.json, or its keys in TOML.
        tokenizer: Tokenizer of the new model: a folder or a hub name.
        init_from: Copy weights of the same name and shape from this model into the new one.
        dev: mlm: texts to measure the accuracy on; repeatable.
        dev_every: Steps between evaluations; 0: a tenth of all steps.
        dev_mask: Share of masked tokens. Default: as in training.
        batches: Draw a batch from one source, or mix sources in a batch.
        sampling_temperature: Sampling of sources: in proportion to their size (1), or more evenly
            (above 1).
        like_length: Batch texts of similar length.
        steps: Number of steps; 0: as many as epochs needs.
        warmup: Warm-up steps; below 1, a share of all steps.
        schedule: Schedule of the learning rate after warm-up.
        min_lr_rate: Cosine: final learning rate, as a share of lr.
        weight_decay: Weight decay of AdamW, for matrices only.
        adam_betas: Betas of AdamW.
        adam_epsilon: Epsilon of AdamW.
        max_grad_norm: Maximum norm of gradients; 0: none.
        gradient_checkpointing: Recompute states in the backward pass: less memory, more time.
        dtype: Dtype of the forward pass; the weights are also kept in fp32.
        device: Device: auto, cpu, cuda or cuda:1.
        batch_tokens: Positions per pass; larger batches use gradient caching; 0: chosen for the device.
        seed: Seed of all random choices.
        save_every: Steps between checkpoints; 0: only at the end.
        log_every: Steps between lines of log.jsonl.
        tensorboard: Log for TensorBoard as well, in the folder's tensorboard/.
        blocks: Join texts and cut them into blocks of max_length, instead of truncating each.
        mask: Share of tokens masked in the encoder's input. Default: usually 0.3.
        whole_words: Mask whole words instead of single tokens. Default: usually whole words.
        decoder_mask: Share of the text hidden from the decoder for each predicted token. Default: 0.5.
        mask_pool: retromae, dupmae: masks drawn for each text. Default: 256.
        query_stream: retromae, dupmae: the decoder's queries pass through the encoder's embeddings
            (DupMAE), or have positions added (RetroMAE). Default: embedded.
        official_quirks: lmk: chunk the special tokens with the text, so that CLS occurs twice.
        if_exists: If the output exists: continue it, fail, or replace it.
        dry_run: Count examples, print placed examples, time five steps and print the plan; write
            nothing.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
    """
    def __init__(
        self,
        sources: Source | Sequence[str | Path],
        *,
        model: str | Path = '',
        pool: str = 'auto',
        gran: int | str | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
        epochs: float = 1.0,
        lr: float = 0.0001,
        objective: str = 'mlm',
        output: str | Path | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        pad_to_max: bool | None = None,
        architecture: str | Path | None = None,
        tokenizer: str | Path = '',
        init_from: str | Path = '',
        dev: Source | Sequence[str | Path] | None = None,
        dev_every: int = 0,
        dev_mask: float | None = None,
        batches: Literal['source', 'mixed'] = 'mixed',
        sampling_temperature: float = 1.0,
        like_length: bool = True,
        steps: int = 0,
        warmup: float = 0.05,
        schedule: Literal['linear', 'cosine', 'constant_with_warmup'] = 'linear',
        min_lr_rate: float = 0.0,
        weight_decay: float = 0.01,
        adam_betas: str = '0.9,0.999',
        adam_epsilon: float = 1e-08,
        max_grad_norm: float = 1.0,
        gradient_checkpointing: bool = False,
        dtype: Literal['auto', 'fp32', 'bf16'] = 'auto',
        device: str = 'auto',
        batch_tokens: int = 0,
        seed: int = 0,
        save_every: int = 0,
        log_every: int = 10,
        tensorboard: bool = False,
        blocks: bool = False,
        mask: float | None = None,
        whole_words: bool | None = None,
        decoder_mask: float | None = None,
        mask_pool: int | None = None,
        query_stream: Literal['embedded', 'raw'] | None = None,
        official_quirks: bool = False,
        if_exists: Literal['resume', 'fail', 'overwrite'] = 'resume',
        dry_run: bool = False,
        offline: bool = False,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Trained:
        """Execute the operation, and return its result."""


class Repro(_Repro):
    """Repeat the recorded steps from their sources and compare each result; exit code 4 if one differs.

    lmk runs the operations that made the artifact and its inputs again, in a temporary folder. The error
    names the first difference and its reason: other documents, another model, other library versions.

    Args:
        what: An entry of a score log, a run, or an artifact's folder.
        output: Keep the reproduced artifacts in this new folder.
        tolerance: Maximum difference of scores, in runs and in measures.
        trust_remote_code: Run Python code that comes with the model.
        download: Allow downloading missing models and collections.
    """
    def __init__(
        self,
        what: str,
        *,
        output: str | Path | None = None,
        tolerance: float = 0.0001,
        trust_remote_code: bool = False,
        download: bool = False,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Reproduced:
        """Execute the operation, and return its result."""


class Search(_Search):
    """Search for the queries of a collection and write a TREC run, or print the hits of one question.

    INDEX may also be a folder or file of documents: lmk keeps vectors and a BM25 index of it in the user's
    cache, updates them if files have changed, and answers -q or -i.

    INDEX may also be a TREC run. --with and --fuse combine several indexes or runs; --rerank scores the top
    documents again.

    The index stores the settings for encoding queries. Equal scores are sorted by document id, descending, as
    in trec_eval.

    Args:
        index: An index, a vectors folder (exact search), or a run; with -q or -i also a folder or file
            of documents.
        queries: The collection that provides the queries.
        question: Search for one question and print its hits.
        interactive: Read questions from standard input and answer each.
        k: Number of documents per query. Default: 1000; 10 with -q.
        where: Filter, such as type=pdf or date>=2026; repeatable.
        others: Another index or run to fuse; repeatable.
        fuse: Fusion: rrf, rrf:60, linear, linear:0.3,0.7; tune:dev chooses it on split dev.
        rerank: Rerank the top documents with the vectors in this folder.
        rerank_model: Rerank the top documents with this cross-encoder.
        output: File for the run.
        all_queries: Also run queries without judgements in the split.
        tag: Name of the run (its last column).
        map_ids: Replace white space in ids by '_'.
        max_memory: Memory limit, such as 4GB; a lower limit means fewer queries at a time. Default: no
            limit.
        shard: Search shard i/n of the vectors, such as $SLURM_ARRAY_TASK_ID/16; the same command
            without shard joins the shards.
        fuse_scale: How linear fusion scales the scores of each query. Default: minmax.
        rerank_depth: Number of documents to rerank.
        interpolate: Weight of the reranking score, from 0 to 1; the first score gets the rest.
        model: The model for documents without an index; or the new location of an index's model, if it
            was moved. Default: mean-minilm; that of the index.
        trust_remote_code: Run Python code that comes with the model.
        device: Device: auto, cpu, cuda or cuda:1.
        dtype: Compute dtype; default: the dtype used for the documents, and fp32 for a cross-encoder.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
        ef_search: HNSW: candidates kept during the search; 0: grows with k.
        uri: milvus: server; required if it is on another machine.
        rm3: bm25, lucene: expand queries with RM3 feedback.
        rm3_terms: rm3: number of terms to add. Default: 10.
        rm3_docs: rm3: number of documents to take terms from. Default: 10.
        rm3_weight: rm3: weight of the original query. Default: 0.5.
        rocchio: bm25, lucene: expand queries with Rocchio feedback.
        nprobe: ivf: number of lists to search; 0: grows with k.
        vectors: New location of the index's vectors, if they were moved.
        aggregate: How to combine the scores of a document's vectors. Default: max.
        level: chunk: rank chunks instead of documents (ids doc#number; -k counts chunks). Default: doc.
        server: Search on this server of lmk serve, where INDEX is the name of an index; none: never use
            one. Default: for -q, a server of the same indexes on this machine.
        pool: auto (from the model folder), cls, last, mean, mean@k, multicls, lmk, latent, or another
            (lmk show poolers).
        gran: Granularity, the length of chunks: a number of tokens, 'sentence', or 'given' (as the
            collection defines).
        window: The text that the model reads at once: full (truncated), chunk, N positions, or even:N
            (about equally long). Default: from the model, else full.
        max_length: Positions of a document, special tokens included.
        query_prompt: Text to add before every query.
        doc_prompt: Text to add before every document.
        if_exists: If the output exists: continue it, fail, or replace it.
    """
    def __init__(
        self,
        index: str | Path,
        queries: Source | None = None,
        *,
        question: str | None = None,
        interactive: bool = False,
        k: int | None = None,
        where: str | Sequence[str] | None = None,
        others: str | Path | Sequence[str | Path] | None = None,
        fuse: str | None = None,
        rerank: str | Path | None = None,
        rerank_model: str | Path | None = None,
        output: str | Path | None = None,
        all_queries: bool = False,
        tag: str | None = None,
        map_ids: bool = False,
        max_memory: int | str = '0',
        shard: str | Shard | None = None,
        fuse_scale: Literal['minmax', 'zscore', 'bounds', 'none'] | None = None,
        rerank_depth: int = 100,
        interpolate: float | None = None,
        model: str | Path = '',
        trust_remote_code: bool = False,
        device: str = 'auto',
        dtype: Literal['auto', 'fp32', 'bf16', 'fp16'] | None = None,
        offline: bool = False,
        ef_search: int = 0,
        uri: str = '',
        rm3: bool = False,
        rm3_terms: int | None = None,
        rm3_docs: int | None = None,
        rm3_weight: float | None = None,
        rocchio: bool = False,
        nprobe: int = 0,
        vectors: str | Path = '',
        aggregate: Literal['max', 'sum', 'avg', 'first'] | None = None,
        level: Literal['doc', 'chunk'] | None = None,
        server: str = '',
        pool: str = 'auto',
        gran: int | str | None = None,
        window: int | str | None = None,
        max_length: int | None = None,
        query_prompt: str | None = None,
        doc_prompt: str | None = None,
        if_exists: Literal['resume', 'fail', 'overwrite'] = 'resume',
    ) -> None: ...
    def run(self, report: Report | None = None) -> Searched:
        """Execute the operation, and return its result."""


class Serve(_Serve):
    """Answer searches: a page for people, HTTP for programs, and MCP for agents.

    INDEX may also be documents: lmk makes its own index of them, and serves changes of the files.
    The models are loaded once. After `lmk update` the server loads the new files, without a failed request.
    A signal stops it when all running requests are answered.

    Only this machine can connect. Another --host needs a token, which an environment variable gives.

    Args:
        indexes: Indexes, vectors folders (exact search) or documents; each index gets the name of its
            folder.
        host: Address to listen at; 0.0.0.0: all.
        port: Port to listen at; 0: any free port.
        rerank_model: A cross-encoder that requests can use as the reranker 'model'.
        cors: Another web site that may use this server from a browser, such as https://example.org;
            repeatable.
        mcp: Serve one agent by MCP on stdin and stdout instead of HTTP.
        connections: Open connections; the one that keeps the server waiting longest makes way for a new
            one.
        waiting: Requests in the queue.
        answer_seconds: Seconds from a request to its answer.
        head_seconds: Seconds in which a client sends the head of a request.
        body_seconds: Seconds in which a client sends the body of a request.
        read_seconds: Seconds for a client to read an answer.
        idle_seconds: Seconds that a connection stays open between two requests.
        stop_seconds: Seconds in which a stopping server answers running requests.
        body_bytes: Bytes of the body of a request.
        characters: Characters of all texts in the answer to a search.
        held_bytes: Bytes of bodies and unread answers of all clients together.
        model: New location of the model, if it was moved.
        trust_remote_code: Run Python code that comes with the model.
        device: Device: auto, cpu, cuda or cuda:1.
        dtype: Compute dtype; default: the dtype used for the documents, and fp32 for a cross-encoder.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
        ef_search: HNSW: candidates kept during the search; 0: grows with k.
        uri: milvus: server; required if it is on another machine.
        rm3: bm25, lucene: expand queries with RM3 feedback.
        rm3_terms: rm3: number of terms to add. Default: 10.
        rm3_docs: rm3: number of documents to take terms from. Default: 10.
        rm3_weight: rm3: weight of the original query. Default: 0.5.
        rocchio: bm25, lucene: expand queries with Rocchio feedback.
        nprobe: ivf: number of lists to search; 0: grows with k.
        vectors: New location of the index's vectors, if they were moved.
        aggregate: How to combine the scores of a document's vectors. Default: max.
        level: chunk: rank chunks instead of documents (ids doc#number; -k counts chunks). Default: doc.
    """
    def __init__(
        self,
        indexes: str | Path | Sequence[str | Path],
        *,
        host: str = '127.0.0.1',
        port: int = 8080,
        rerank_model: str | Path | None = None,
        cors: str | Sequence[str] | None = None,
        mcp: bool = False,
        connections: int = 1000,
        waiting: int = 256,
        answer_seconds: float = 30.0,
        head_seconds: float = 10.0,
        body_seconds: float = 10.0,
        read_seconds: float = 30.0,
        idle_seconds: int = 5,
        stop_seconds: float = 5.0,
        body_bytes: int = 1048576,
        characters: int = 32000000,
        held_bytes: int = 33554432,
        model: str | Path = '',
        trust_remote_code: bool = False,
        device: str = 'auto',
        dtype: Literal['auto', 'fp32', 'bf16', 'fp16'] | None = None,
        offline: bool = False,
        ef_search: int = 0,
        uri: str = '',
        rm3: bool = False,
        rm3_terms: int | None = None,
        rm3_docs: int | None = None,
        rm3_weight: float | None = None,
        rocchio: bool = False,
        nprobe: int = 0,
        vectors: str | Path = '',
        aggregate: Literal['max', 'sum', 'avg', 'first'] | None = None,
        level: Literal['doc', 'chunk'] | None = None,
    ) -> None: ...
    def run(self, report: Report | None = None) -> None:
        """Execute the operation, and return its result."""


class Show(_Show):
    """Describe an artifact and its lineage, or list known names or caches.

    'lmk -v show' and --json also print digests.

    Args:
        what: An artifact, a model, a run, a score log, results of a grid, a collection or a group; a
            catalog: sources, readers, poolers, models, engines, formats, losses, pretexts, measures; or
            caches.
        name: After 'sources' a group, such as beir; after 'source' a collection; after results with
            several parts, a part.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
    """
    def __init__(
        self,
        what: str,
        name: str | None = None,
        *,
        offline: bool = False,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Result:
        """Execute the operation, and return its result."""


class Tokenize(_Tokenize):
    """Convert documents to content token ids and offsets, once for all poolers with the same tokenizer.

    lmk prints length statistics: the shares of documents longer than several lengths, and the share of
    positions that landmarks would add. --pool has an effect only with --show, and with --gran sentence,
    which tokenizes each sentence separately.

    Args:
        source: The collection to tokenize.
        model: A model folder, a hub name, mean-minilm, lmk-minilm or minilm (extra demo).
        pool: auto (from the model folder), cls, last, mean, mean@k, multicls, lmk, latent, or another
            (lmk show poolers).
        gran: Granularity, the length of chunks: a number of tokens, 'sentence', or 'given' (as the
            collection defines).
        unit: The text that one vector represents: doc, chunk or token. Default: doc.
        window: The text that the model reads at once: full (truncated), chunk, N positions, or even:N
            (about equally long). Default: from the model, else full.
        max_length: Positions of a document, special tokens included.
        output: Output path.
        revision: Branch, tag or commit of a hub model.
        trust_remote_code: Run Python code that comes with the model.
        overlap: Overlap with the previous window: tokens (128) or chunks (10c).
        doc_prompt: Text to add before every document.
        top_terms: Sparse vectors: number of terms of a document to keep, those of the largest weights.
            Default: all.
        sum_windows: Sparse vectors: add the weights of a term in all windows, instead of their maximum.
        fields: Text fields of a record, joined by '+', such as headline+body.
        map_ids: Replace white space in ids by '_'.
        shard: Process shard i/n of the collection, such as $SLURM_ARRAY_TASK_ID/16.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
        if_exists: If the output exists: continue it, fail, or replace it.
        store_text: Store titles and texts with the tokens.
        show: Print the placement of this text, and the terms of its vector if it has terms; write
            nothing.
    """
    def __init__(
        self,
        source: Source | None = None,
        *,
        model: str | Path,
        pool: str = 'auto',
        gran: int | str | None = None,
        unit: str | None = None,
        window: int | str | None = None,
        max_length: int | None = None,
        output: str | Path | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        overlap: int | str | None = None,
        doc_prompt: str | None = None,
        top_terms: int | None = None,
        sum_windows: bool | None = None,
        fields: str = '',
        map_ids: bool = False,
        shard: str | Shard = '0/1',
        offline: bool = False,
        if_exists: Literal['resume', 'fail', 'overwrite'] = 'resume',
        store_text: bool = True,
        show: str | None = None,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Tokenized:
        """Execute the operation, and return its result."""


class Train(_Train):
    """Train a bi-encoder with the pooling, the granularities and the prompts of its later use.

    --gran accepts a list, such as 32,64,128,256: lmk draws a granularity for each text, and the model folder
    declares the first one. With --window chunk, each chunk is read by itself; another window is only stored
    in the model folder, for lmk encode. You can stop a training at any time; the same command continues.

    Args:
        sources: Files of examples, or collections with judgements such as beir/scifact:train.
        model: A model folder, a hub name, mean-minilm, lmk-minilm or minilm (extra demo).
        pool: auto (from the model folder), cls, last, mean, mean@k, multicls, lmk, latent, or another
            (lmk show poolers).
        gran: Granularity, the length of chunks: a number of tokens, 'sentence', or 'given' (as the
            collection defines).
        unit: The text that one vector represents: doc, chunk or token. Default: doc.
        window: The text that the model reads at once: full (truncated), chunk, N positions, or even:N
            (about equally long). Default: from the model, else full.
        max_length: Positions of a document, special tokens included.
        batch_size: Queries or texts per batch, over all processes.
        epochs: Passes over the data, unless steps is given.
        lr: Peak learning rate.
        loss: The objective, a sum such as kl+0.5*opl, or one with settings such as
            kl:temperature=0.1,infonce=0 (lmk show losses).
        dev: A judged collection to evaluate on; repeatable.
        output: Folder for the model.
        revision: Branch, tag or commit of a hub model.
        trust_remote_code: Run Python code that comes with the model.
        extend: Extend the positions of the model up to max_length: grouped, interpolate or recurrent
            (tables of positions), ntk or selfextend (rotary).
        query_max_length: Positions of a query, special tokens included.
        query_prompt: Text to add before every query.
        doc_prompt: Text to add before every document.
        normalize: Normalise vectors to unit length.
        doc_flops: Weight of FLOPS, sparse documents. Default: 3e-5.
        query_flops: Weight of FLOPS, sparse queries. Default: 5e-5.
        doc_l1: Weight of L1, sparse documents. Default: 0.
        query_l1: Weight of L1, sparse queries. Default: 0.
        sparsity_warmup: Steps until these weights are reached; below 1, a share of all steps. Default:
            1/3.
        batches: Draw a batch from one source, or mix sources in a batch.
        sampling_temperature: Sampling of sources: in proportion to their size (1), or more evenly
            (above 1).
        like_length: Batch texts of similar length.
        steps: Number of steps; 0: as many as epochs needs.
        warmup: Warm-up steps; below 1, a share of all steps.
        schedule: Schedule of the learning rate after warm-up.
        min_lr_rate: Cosine: final learning rate, as a share of lr.
        weight_decay: Weight decay of AdamW, for matrices only.
        adam_betas: Betas of AdamW.
        adam_epsilon: Epsilon of AdamW.
        max_grad_norm: Maximum norm of gradients; 0: none.
        gradient_checkpointing: Recompute states in the backward pass: less memory, more time.
        dtype: Dtype of the forward pass; the weights are also kept in fp32.
        device: Device: auto, cpu, cuda or cuda:1.
        batch_tokens: Positions per pass; larger batches use gradient caching; 0: chosen for the device.
        seed: Seed of all random choices.
        save_every: Steps between checkpoints; 0: only at the end.
        log_every: Steps between lines of log.jsonl.
        tensorboard: Log for TensorBoard as well, in the folder's tensorboard/.
        temperature: Divisor of the scores; 0: the default of the pooler, else of the objective (0.02).
        symmetric: infonce: also contrast each passage with all queries.
        teacher: Teacher model: add the distance from its vectors to the loss. It reads long texts in
            windows.
        teacher_weight: Weight of the distance from the teacher's vectors.
        dims: Matryoshka: compute the loss at several dimensions, such as 384,256,128.
        lora: Train adapters of this rank (LoRA) instead of all weights; 0: none.
        train: Train only these parts (with lora: also these parts): embeddings, positions, layers.4-5,
            norms, biases, modules.
        freeze: Parts to freeze; the same names as for train.
        skip_positions: Share of passages that get a gap in their positions; positions reach up to
            max_length (PoSE).
        dev_every: Steps between evaluations; 0: a tenth of all steps.
        dev_measure: Measure, in the notation of ir-measures.
        patience: Stop after this many evaluations without improvement; 0: never.
        if_exists: If the output exists: continue it, fail, or replace it.
        dry_run: Count examples, print placed examples, time five steps and print the plan; write
            nothing.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
    """
    def __init__(
        self,
        sources: Source | Sequence[str | Path],
        *,
        model: str | Path,
        pool: str = 'auto',
        gran: int | str | None = None,
        unit: str | None = None,
        window: int | str | None = None,
        max_length: int | None = None,
        batch_size: int = 64,
        epochs: float = 1.0,
        lr: float = 2e-05,
        loss: str = 'infonce',
        dev: Source | Sequence[str | Path] | None = None,
        output: str | Path | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        extend: str | None = None,
        query_max_length: int | None = None,
        query_prompt: str | None = None,
        doc_prompt: str | None = None,
        normalize: bool | None = None,
        doc_flops: float | None = None,
        query_flops: float | None = None,
        doc_l1: float | None = None,
        query_l1: float | None = None,
        sparsity_warmup: float | None = None,
        batches: Literal['source', 'mixed'] = 'source',
        sampling_temperature: float = 1.0,
        like_length: bool = True,
        steps: int = 0,
        warmup: float = 0.05,
        schedule: Literal['linear', 'cosine', 'constant_with_warmup'] = 'linear',
        min_lr_rate: float = 0.0,
        weight_decay: float = 0.01,
        adam_betas: str = '0.9,0.999',
        adam_epsilon: float = 1e-08,
        max_grad_norm: float = 1.0,
        gradient_checkpointing: bool = False,
        dtype: Literal['auto', 'fp32', 'bf16'] = 'auto',
        device: str = 'auto',
        batch_tokens: int = 0,
        seed: int = 0,
        save_every: int = 0,
        log_every: int = 10,
        tensorboard: bool = False,
        temperature: float = 0.0,
        symmetric: bool = False,
        teacher: str | Path = '',
        teacher_weight: float = 1.0,
        dims: str = '',
        lora: int = 0,
        train: str = '',
        freeze: str = '',
        skip_positions: float = 0.0,
        dev_every: int = 0,
        dev_measure: str = 'nDCG@10',
        patience: int = 0,
        if_exists: Literal['resume', 'fail', 'overwrite'] = 'resume',
        dry_run: bool = False,
        offline: bool = False,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Trained:
        """Execute the operation, and return its result."""


class Update(_Update):
    """Update vectors and indexes to the current state of a collection, with their recorded settings.

    For each folder, vectors first, lmk runs the recorded operation (lmk encode or lmk index) again with
    --if-exists update. Up-to-date folders are left unchanged. A stopped or failed step leaves its folder
    unchanged.

    Args:
        source: The collection.
        folders: Existing vectors of the collection, and existing indexes of it or of these vectors.
        trust_remote_code: Run Python code that comes with the model.
        download: Allow downloading missing models and collections.
    """
    def __init__(
        self,
        source: Source,
        folders: str | Path | Sequence[str | Path],
        *,
        trust_remote_code: bool = False,
        download: bool = False,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Updated:
        """Execute the operation, and return its result."""


class Verify(_Verify):
    """Encode a sample of the stored texts again and compare with the stored vectors; exit code 4 if they
    differ.

    The cosine of each pair must be at least 0.99999 for vectors computed in fp32, and 0.999 for bf16 and
    fp16. For an index, lmk reads all files and compares them with their recorded digests.

    Args:
        folder: A vectors folder, or an index.
        model: New location of the model, if it was moved.
        trust_remote_code: Run Python code that comes with the model.
        device: Device: auto, cpu, cuda or cuda:1.
        offline: Never use the network (as with HF_HUB_OFFLINE=1).
        sample: Number of documents to encode again, spread over the folder. Default: 100.
    """
    def __init__(
        self,
        folder: str | Path,
        *,
        model: str | Path = '',
        trust_remote_code: bool = False,
        device: str = 'auto',
        offline: bool = False,
        sample: int | None = None,
    ) -> None: ...
    def run(self, report: Report | None = None) -> Verified:
        """Execute the operation, and return its result."""


def index(
    documents: Source,
    model: str | Path = '',
    kind: str = 'exact',
    *,
    pool: str = 'auto',
    gran: int | str | None = None,
    unit: str | None = None,
    window: int | str | None = None,
    max_length: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    overlap: int | str | None = None,
    context: str | None = None,
    extend: str | None = None,
    pad_to_max: bool | None = None,
    query_max_length: int | None = None,
    query_prompt: str | None = None,
    doc_prompt: str | None = None,
    dim: int | None = None,
    normalize: bool | None = None,
    top_terms: int | None = None,
    query_top_terms: int | None = None,
    sum_windows: bool | None = None,
    dtype: Literal['auto', 'fp32', 'bf16', 'fp16'] = 'auto',
    store_dtype: str = 'fp16',
    device: str = 'auto',
    batch_tokens: int = 0,
    batch_size: int = 512,
    workers: int | None = None,
    on_overflow: Literal['truncate', 'error'] = 'truncate',
    store_text: bool = True,
    fields: str = '',
    map_ids: bool = False,
    offline: bool = False,
    only: str | Path | None = None,
    uri: str = '',
    language: str = 'en',
    max_memory: int | str = '0',
    m: int = 32,
    ef_construction: int = 200,
    collection: str = '',
    index_type: Literal['AUTOINDEX', 'HNSW', 'FLAT'] = 'AUTOINDEX',
    k1: float = 0.9,
    b: float = 0.4,
    stemmer: str = '',
    docvectors: bool = False,
    muvera: str = '',
    stopwords_file: str | Path | None = None,
    allow_incomplete: bool = False,
) -> OpenIndex:
    """Encode and index documents, and open the index: `lmkcli.index(texts, "minilm").search("…")`.

    `documents` is a table (pandas, polars, Arrow, datasets), an iterable of texts or dictionaries, or the
    name of a collection. The default model is mean-minilm. `kind` is a kind of `lmk index`; bm25 needs no
    model. `settings` are the fields of `Encode` and `BuildIndex`, such as unit="chunk" and gran=64. The files
    are in a temporary folder, which is removed with the index. Raises UsageError for unknown settings.
    """


def open_index(
    index: str | Path,
    *others: str | Path,
    where: str | Sequence[str] | None = None,
    fuse: str | None = None,
    rerank: str | Path | None = None,
    rerank_model: str | Path | None = None,
    fuse_scale: Literal['minmax', 'zscore', 'bounds', 'none'] | None = None,
    rerank_depth: int = 100,
    interpolate: float | None = None,
    model: str | Path = '',
    trust_remote_code: bool = False,
    device: str = 'auto',
    dtype: Literal['auto', 'fp32', 'bf16', 'fp16'] | None = None,
    offline: bool = False,
    ef_search: int = 0,
    uri: str = '',
    rm3: bool = False,
    rm3_terms: int | None = None,
    rm3_docs: int | None = None,
    rm3_weight: float | None = None,
    rocchio: bool = False,
    nprobe: int = 0,
    vectors: str | Path = '',
    aggregate: Literal['max', 'sum', 'avg', 'first'] | None = None,
    level: Literal['doc', 'chunk'] | None = None,
    server: str = '',
    pool: str = 'auto',
    gran: int | str | None = None,
    window: int | str | None = None,
    max_length: int | None = None,
    query_prompt: str | None = None,
    doc_prompt: str | None = None,
) -> OpenIndex:
    """Open a folder of vectors or an index for searching.

    `others` are indexes to fuse with it (`fuse="rrf"`); further settings are the fields of `Search`, such as
    `rerank_model`, `device` and `aggregate`. Raises DataError if a folder cannot be searched, and UsageError
    for settings that contradict each other.
    """


def search(
    index: str | Path,
    question: str,
    k: int = 10,
    *,
    where: str | Sequence[str] | None = None,
    others: str | Path | Sequence[str | Path] | None = None,
    fuse: str | None = None,
    rerank: str | Path | None = None,
    rerank_model: str | Path | None = None,
    fuse_scale: Literal['minmax', 'zscore', 'bounds', 'none'] | None = None,
    rerank_depth: int = 100,
    interpolate: float | None = None,
    model: str | Path = '',
    trust_remote_code: bool = False,
    device: str = 'auto',
    dtype: Literal['auto', 'fp32', 'bf16', 'fp16'] | None = None,
    offline: bool = False,
    ef_search: int = 0,
    uri: str = '',
    rm3: bool = False,
    rm3_terms: int | None = None,
    rm3_docs: int | None = None,
    rm3_weight: float | None = None,
    rocchio: bool = False,
    nprobe: int = 0,
    vectors: str | Path = '',
    aggregate: Literal['max', 'sum', 'avg', 'first'] | None = None,
    level: Literal['doc', 'chunk'] | None = None,
    server: str = '',
    pool: str = 'auto',
    gran: int | str | None = None,
    window: int | str | None = None,
    max_length: int | None = None,
    query_prompt: str | None = None,
    doc_prompt: str | None = None,
) -> Hits:
    """Return the k best documents for one question; `settings` as in `open_index`.

    This opens the index for one call. For several questions, use `open_index`.
    """

