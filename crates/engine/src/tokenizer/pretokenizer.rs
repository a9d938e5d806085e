//! How a byte-level vocabulary wants text cut before merging: one row per name in `tokenizer.ggml.pre`.

use fancy_regex::Regex;

use super::{TokenizerError, keys};
use crate::gguf::Gguf;

/// The contractions of English, in either case, as the newer patterns write them.
macro_rules! contractions {
    () => {
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
    };
}

/// Words with a leading space, numbers, punctuation, spaces up to the last.
pub(super) const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA_3: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN_2: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Scheme {
    names: &'static [&'static str],
    /// Applied one after the other, each to what the one before cut.
    patterns: &'static [&'static str],
    /// A word that is a token is taken whole, whatever the merge rules say.
    whole_words: bool,
    /// Whether a BOS is wanted when the file does not say.
    adds_bos: bool,
}

const SCHEMES: &[Scheme] = &[
    Scheme {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        patterns: &[r"\p{N}", GPT_2],
        whole_words: false,
        adds_bos: false,
    },
    Scheme {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "megrez",
            "solar-open",
        ],
        patterns: &[QWEN_2],
        whole_words: false,
        adds_bos: false,
    },
    Scheme {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"],
        patterns: &[LLAMA_3],
        whole_words: true,
        adds_bos: true,
    },
    Scheme {
        names: &["smaug-bpe", "dbrx"],
        patterns: &[LLAMA_3],
        whole_words: false,
        adds_bos: false,
    },
    Scheme {
        names: &["tekken"],
        patterns: &[TEKKEN],
        whole_words: true,
        adds_bos: true,
    },
    Scheme {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        patterns: &[GPT_2],
        whole_words: false,
        adds_bos: false,
    },
    Scheme {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        whole_words: false,
        adds_bos: false,
    },
];

/// Cuts text into words.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    patterns: Vec<Regex>,
    pub(super) whole_words: bool,
    pub(super) adds_bos: bool,
}

impl PreTokenizer {
    /// What a file says: patterns, or the name of a scheme.
    pub(super) fn of(file: &Gguf) -> Result<Self, TokenizerError> {
        let Some(patterns) = file.strings(keys::PATTERNS)? else {
            return Self::named(file.optional("tokenizer.ggml.pre")?);
        };
        let compile = |pattern: &[u8]| {
            let pattern = String::from_utf8_lossy(pattern);
            Regex::new(&pattern).map_err(|source| TokenizerError::Pattern {
                pattern: pattern.into_owned(),
                source: Box::new(source),
            })
        };
        Ok(Self {
            patterns: patterns.map(compile).collect::<Result<_, _>>()?,
            whole_words: file.optional(keys::WHOLE_WORDS)?.unwrap_or(false),
            adds_bos: false,
        })
    }

    /// The scheme of this name. A file without a name, or with the name `default`, was made before names were
    /// recorded: it is read with the general scheme and a warning, because its tokens may be wrong.
    pub(super) fn named(name: Option<&str>) -> Result<Self, TokenizerError> {
        if matches!(name, None | Some("default")) {
            tracing::warn!(
                "the file does not say how its text is split into words (tokenizer.ggml.pre is {}): tokens may differ \
                 from what the model was trained on and answers may be worse; use a newer conversion of the model",
                name.unwrap_or("missing")
            );
        }
        let name = name.unwrap_or("default");
        let scheme = SCHEMES.iter().find(|scheme| scheme.names.contains(&name));
        let scheme = scheme.ok_or_else(|| TokenizerError::UnknownPreTokenizer { name: name.to_owned() })?;
        let compile = |pattern: &&str| Regex::new(pattern).expect("the table's patterns compile: a test does so");
        Ok(Self {
            patterns: scheme.patterns.iter().map(compile).collect(),
            whole_words: scheme.whole_words,
            adds_bos: scheme.adds_bos,
        })
    }

    /// Hands every word to `word`, in order. Together they are the text: what no pattern matches is a word too.
    pub(super) fn split<'t>(&self, text: &'t str, mut word: impl FnMut(&'t str)) {
        split_by(&self.patterns, text, &mut word);
    }
}

fn split_by<'t>(patterns: &[Regex], text: &'t str, word: &mut dyn FnMut(&'t str)) {
    let Some((first, rest)) = patterns.split_first() else {
        return word(text);
    };
    let mut done = 0;
    // The patterns look ahead by one character, so the engine's limit on backtracking is out of reach; past it the rest
    // would be one word.
    for (start, end) in first
        .find_iter(text)
        .map_while(Result::ok)
        .map(|found| (found.start(), found.end()))
    {
        if done < start {
            split_by(rest, &text[done..start], word);
        }
        if start < end {
            split_by(rest, &text[start..end], word);
        }
        done = end;
    }
    if done < text.len() {
        split_by(rest, &text[done..], word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        PreTokenizer::named(Some(name))
            .expect("it is in the table")
            .split(text, |word| words.push(word.to_owned()));
        assert_eq!(words.concat(), text);
        words
    }

    #[test]
    fn every_pattern_compiles_and_every_name_is_listed_once() {
        let mut names: Vec<_> = SCHEMES.iter().flat_map(|scheme| scheme.names).collect();
        for name in &names {
            words(name, "Some text, 1234 of it.\n\n  It's  \t odd\u{a0}é語🙂 \n");
        }
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn digits_are_single_in_smollm_and_qwen_and_triple_in_llama_3() {
        assert_eq!(words("smollm", "a 1234"), ["a", " ", "1", "2", "3", "4"]);
        assert_eq!(words("qwen2", "a 1234"), ["a", " ", "1", "2", "3", "4"]);
        assert_eq!(words("llama-bpe", "a 1234"), ["a", " ", "123", "4"]);
        assert_eq!(words("gpt-2", "a 1234"), ["a", " 1234"]);
    }

    #[test]
    fn the_last_space_of_a_run_goes_with_the_word() {
        assert_eq!(words("gpt-2", "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(words("qwen2", "if x:\n    y"), ["if", " x", ":\n", "   ", " y"]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_says_it() {
        let error = PreTokenizer::named(Some("no-such-scheme"))
            .expect_err("not in the table")
            .to_string();
        assert!(error.contains("no-such-scheme"), "{error}");
    }

    #[test]
    fn long_runs_are_split_in_full() {
        for text in [
            " ".repeat(300_000) + "x",
            "\n".repeat(300_000),
            "é".repeat(300_000),
            "!".repeat(300_000),
        ] {
            for name in ["smollm", "qwen2", "llama-bpe", "tekken", "default"] {
                assert!(words(name, &text).len() <= 2, "{name}");
            }
        }
    }
}
