//! Which forms may a field have?
//!
//! Serde's untagged enums keep a copy of what they read, many times as large as the text; these read each form as it
//! comes.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A field that is refused where it asks for something. It is read past, whatever it has: nobody needs it. Null, `false`,
/// `none`, `auto`, an empty list and an empty map ask for nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asks(pub(super) bool);

impl<'de> Deserialize<'de> for Asks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = bool;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("anything")
            }

            fn visit_unit<E: Error>(self) -> Result<bool, E> {
                Ok(false)
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
                Ok(value)
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<bool, E> {
                Ok(true)
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<bool, E> {
                Ok(true)
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<bool, E> {
                Ok(true)
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<bool, E> {
                Ok(!matches!(value, "none" | "auto"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
                let mut some = false;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    some = true;
                }
                Ok(some)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
                let mut some = false;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    some = true;
                }
                Ok(some)
            }
        }
        deserializer.deserialize_any(Reader).map(Self)
    }
}

/// A list of at most so many, of which no more are read.
#[derive(Debug)]
pub(super) struct AtMost<T, const MOST: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for AtMost<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T, const MOST: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Reader<T, MOST> {
            type Value = Vec<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
                rest(Vec::new(), list, MOST)
            }
        }
        deserializer.deserialize_seq(Reader::<T, MOST>(PhantomData)).map(Self)
    }
}

/// The list so far and what follows.
fn rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    mut items: Vec<T>,
    mut list: A,
    most: usize,
) -> Result<Vec<T>, A::Error> {
    while let Some(item) = list.next_element()? {
        if items.len() == most {
            return Err(A::Error::custom(format_args!("the list has more than {most} entries")));
        }
        items.push(item);
    }
    Ok(items)
}

/// A text, or a list of something.
#[derive(Debug)]
pub(super) enum TextOr<L> {
    Text(String),
    List(L),
}

impl<'de, L: Deserialize<'de>> Deserialize<'de> for TextOr<L> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<L>(PhantomData<L>);
        impl<'de, L: Deserialize<'de>> Visitor<'de> for Reader<L> {
            type Value = TextOr<L>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text or a list")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<TextOr<L>, E> {
                Ok(TextOr::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<TextOr<L>, A::Error> {
                L::deserialize(SeqAccessDeserializer::new(list)).map(TextOr::List)
            }
        }
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

/// Most prompts of one request.
const MOST_PROMPTS: usize = 32;

/// What a list of a prompt is a list of. An empty one could be any.
#[derive(Debug)]
pub(super) enum Prompts {
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    ManyTokens(Vec<Vec<u32>>),
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Prompts;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of texts, of tokens, or of lists of tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
                match list.next_element()? {
                    None => Ok(Prompts::Texts(Vec::new())),
                    Some(First::Text(text)) => rest(vec![text], list, MOST_PROMPTS).map(Prompts::Texts),
                    Some(First::Token(token)) => rest(vec![token], list, usize::MAX).map(Prompts::Tokens),
                    Some(First::Tokens(tokens)) => rest(vec![tokens], list, MOST_PROMPTS).map(Prompts::ManyTokens),
                }
            }
        }
        deserializer.deserialize_seq(Reader)
    }
}

/// The first of a list says what the others are.
enum First {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for First {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = First;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text, a token or a list of tokens")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<First, E> {
                Ok(First::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, token: u64) -> Result<First, E> {
                u32::try_from(token).map(First::Token).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<First, A::Error> {
                rest(Vec::new(), list, usize::MAX).map(First::Tokens)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Chat asks with a flag, completions with a number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Logprobs {
    Flag(bool),
    Count(usize),
}

impl<'de> Deserialize<'de> for Logprobs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Logprobs;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("true, false or a whole number")
            }

            fn visit_bool<E: Error>(self, flag: bool) -> Result<Logprobs, E> {
                Ok(Logprobs::Flag(flag))
            }

            fn visit_u64<E: Error>(self, count: u64) -> Result<Logprobs, E> {
                usize::try_from(count).map(Logprobs::Count).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// What stays in the cache, as a number or as methods write it.
#[derive(Debug)]
pub(super) struct BudgetText(pub(super) String);

impl<'de> Deserialize<'de> for BudgetText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = BudgetText;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a number of entries, or a text such as `10%`, `ratio=0.9` or `tokens=512`")
            }

            fn visit_u64<E: Error>(self, entries: u64) -> Result<BudgetText, E> {
                Ok(BudgetText(entries.to_string()))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<BudgetText, E> {
                Ok(BudgetText(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}
