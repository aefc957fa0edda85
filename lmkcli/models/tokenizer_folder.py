"""The tokenizer of a model folder: opened, checked, and with its special tokens."""

from typing import Any

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lmkcli import catalog
from lmkcli.errors import DataError, UsageError
from lmkcli.models.consent import opening
from lmkcli.models.model_files import read_json
from lmkcli.models.model_folder import NO_LIMIT, TRANSFORMER, ModelFolder
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.pooling.table import SpecialTokens
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.spec.values import FULL

# Ordinary tokens of the tokenizers that transformers invents if files are missing.
_EMPTY_VOCABULARY = 2


def open_tokenizer(folder: ModelFolder, side: EncoderConfig) -> Tokenizer:
    """Open the tokenizer of one side, with its prompt and splitter. DataError without a fast tokenizer."""
    folder = folder.route(side.weights, side.tokenizer)
    path = folder.tokenizer_path
    with opening(path, f"the tokenizer of {folder.name}", side.trust_remote_code):
        own_file = folder.row.own_tokenizer and (path / "tokenizer.json").is_file()
        opener: Any = PreTrainedTokenizerFast if own_file else AutoTokenizer
        if folder.kind != TRANSFORMER:  # AutoTokenizer looks up the configuration class too
            catalog.MODELS.load(folder.kind)
        loaded = opener.from_pretrained(
            str(path),
            trust_remote_code=side.trust_remote_code,
            **dict(folder.tokenizer_options),
        )
        if not loaded.is_fast:
            raise DataError(
                f"{folder.name} has only a slow tokenizer without offsets; save it with a tokenizer.json"
            )
        if len(loaded) - len(set(loaded.all_special_ids)) <= _EMPTY_VOCABULARY:
            raise DataError(
                f"the tokenizer of {folder.name} has no vocabulary: its files (tokenizer.json, vocab.txt …) "
                f"are missing from {path}"
            )
        fast = loaded.backend_tokenizer
        fast.no_truncation()
        fast.no_padding()  # first: the file may ask for any number of tokens
        _check_ids(folder, fast)
        _check_file(folder, type(loaded).__name__, fast)
        if folder.lower_case:
            parts = [normalizers.Lowercase(), *([fast.normalizer] if fast.normalizer else [])]
            fast.normalizer = normalizers.Sequence(parts)
        _check_types(folder, loaded)
        special = special_tokens_of(loaded, side)._replace(cuts_suffix=folder.row.cuts_suffix)
        if folder.table:  # without special tokens; the row after the last token is zero
            special = SpecialTokens(landmark=fast.get_vocab_size())
    folder.check_unchanged()
    if side.splitter == "given" and special.separator is None:
        raise UsageError(
            f"--gran given needs a tokenizer with a SEP or PAD token, and {folder.name} has neither"
        )
    return Tokenizer(
        fast, special, side.prompt, side.splitter, keep_space=side.keep_space,
        hidden_suffix=None if side.include_prompt else counted_suffix(loaded, special),
    )  # fmt: skip


# Texts on which two tokenizers of one vocabulary usually differ if their rules differ
_PROBES = (
    "The Landmark-pooling of naïve cafés, 1,234 words (e.g. don't, won't) costs $5.60!",
    "  two  spaces\tand\na line_break under_scored CamelCase UPPER lower",
    "Größe Straße ÉTÉ Ελληνικά Москва Турция ﬁne ½ Ⅳ",
    "東京は日本の首都です。 你好世界 안녕하세요 สวัสดี שלום مرحبا",
)


def _check_file(folder: ModelFolder, name: str, fast: Any) -> None:
    """Raise DataError if tokenizer.json splits texts in another way than the class that the folder names.

    Some classes of transformers set a normalizer and a splitter of their own. Which of the two the model was
    trained with is unknown.
    """
    file = folder.encoder / "tokenizer.json"
    if not file.is_file() or folder.kind != TRANSFORMER:
        return
    if "auto_map" in read_json(folder.encoder / "tokenizer_config.json"):
        return  # the folder's own code decides
    own = RustTokenizer.from_file(str(file))
    own.no_truncation()
    own.no_padding()
    for probe in _PROBES:
        if own.encode(probe, add_special_tokens=False).ids != (
            fast.encode(probe, add_special_tokens=False).ids
        ):
            raise DataError(
                f"{file} and the class {name}, which transformers uses for this folder, split texts "
                'differently: write "tokenizer_class": "PreTrainedTokenizerFast" into tokenizer_config.json '
                "to use tokenizer.json, or remove tokenizer.json to use the class"
            )


def _check_types(folder: ModelFolder, loaded: Any) -> None:
    """Raise DataError for a tokenizer that numbers the segments of one text: lmk gives a model no types."""
    types = loaded("a").get("token_type_ids") or ()
    if any(types):
        raise DataError(
            f"the tokenizer of {folder.name} gives a text the segment numbers {sorted(set(types))}, and lmk "
            "gives a model none; give another model"
        )


def _check_ids(folder: ModelFolder, fast: Any) -> None:
    """Raise DataError for tokens whose ids no model has: ids are stored in 31 bits."""
    added = fast.get_added_tokens_decoder()
    around = fast.encode("a", add_special_tokens=True).ids
    if max([*added, *around], default=0) > NO_LIMIT:
        raise DataError(
            f"the tokenizer of {folder.name} has the token id {max([*added, *around])}; "
            "download the model again"
        )


def counted_suffix(loaded: Any, special: SpecialTokens) -> int:
    """Return how many tokens of the suffix sentence-transformers counts as tokens of a prompt that it hides.

    It measures the prompt with the suffix, without a last token that the tokenizer names as special.
    """
    last = special.suffix[-1:]
    return len(special.suffix) - len(set(last) & set(loaded.all_special_ids))


def special_tokens_of(loaded: Any, side: EncoderConfig) -> SpecialTokens:
    """Return the special tokens around content, by encoding one word with the tokenizer's own template."""
    bare = loaded.backend_tokenizer.encode("a", add_special_tokens=False).ids
    full = loaded.backend_tokenizer.encode("a", add_special_tokens=True).ids
    at = next((i for i in range(len(full) - len(bare) + 1) if full[i : i + len(bare)] == bare), 0)
    prefix, suffix = tuple(full[:at]), tuple(full[at + len(bare) :])
    eos = loaded.eos_token_id
    if side.append_eos and eos is not None and eos not in suffix:
        suffix = (*suffix, eos)
    cls = loaded.cls_token_id if loaded.cls_token_id is not None else loaded.bos_token_id
    landmark = loaded.sep_token_id if loaded.sep_token_id is not None else eos
    separator = loaded.sep_token_id if loaded.sep_token_id is not None else loaded.pad_token_id
    if side.landmark_token is not None:  # LandmarkTransformer does not use the template
        landmark = side.landmark_token
        prefix = () if cls is None else (cls,)
        if loaded.backend_tokenizer.id_to_token(landmark) is None:
            raise DataError(
                f"the folder declares the landmark token {landmark}, which its tokenizer does not have; "
                "correct lmk_token_id in its sentence_bert_config.json"
            )
    if side.prefix_token is not None:
        prefix = (*prefix[:1], side.prefix_token, *prefix[1:])
    # the tokens of chunks have places, so that a text in chunks is always read from its start
    cuts_start = loaded.truncation_side == "left" and side.unit == "doc" and side.window == FULL
    return SpecialTokens(
        prefix, suffix, cls, landmark, separator, mask=loaded.mask_token_id, cuts_start=cuts_start
    )
