//! Metadata keys of our own, for what other formats say of a tokenizer and GGUF has no words for.

/// Regular expressions that text is cut by, one after the other, instead of a name.
pub(crate) const PATTERNS: &str = "inertiakv.tokenizer.patterns";
/// A word that is a token is taken whole, whatever the merge rules say.
pub(crate) const WHOLE_WORDS: &str = "inertiakv.tokenizer.whole_words";
/// Characters are composed (NFC) first.
pub(crate) const COMPOSES: &str = "inertiakv.tokenizer.composes";
/// Left and right sides of merge rules in turn, best rule first, of a vocabulary with marked spaces.
pub(crate) const MERGE_SIDES: &str = "inertiakv.tokenizer.merge_sides";
/// Which texts get a space in front: [`NEVER`], [`FIRST`], [`ALWAYS`] or [`PREPENDED`].
pub(crate) const SPACE_PREFIX: &str = "inertiakv.tokenizer.space_prefix";
/// Marked text is cut before every mark.
pub(crate) const SPLITS_WORDS: &str = "inertiakv.tokenizer.splits_words";
/// Further tokens that end a turn or a document.
pub(crate) const ENDS: &str = "inertiakv.tokenizer.end_token_ids";

/// No text.
pub(crate) const NEVER: &str = "never";
/// A text that begins the whole input, unless it begins with a space.
pub(crate) const FIRST: &str = "first";
/// A text at the beginning or after a special token, unless it begins with a space.
pub(crate) const ALWAYS: &str = "always";
/// A text at the beginning or after a special token, whatever it begins with.
pub(crate) const PREPENDED: &str = "prepended";

/// How byte-level tokenizers cut where they do not say.
pub(crate) const BYTE_LEVEL_PATTERN: &str = super::pretokenizer::GPT_2;
