//! Tokens as the model was trained on them: agreement with llama.cpp, and what is refused.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use inertiakv::gguf::{Gguf, GgufWriter};
use inertiakv::testing::TinyModel;
use inertiakv::tokenizer::{Segment, Tokenizer, TokenizerError};
use proptest::prelude::*;
use serde::Deserialize;

use crate::models;

const PRE: &str = "tokenizer.ggml.pre";

fn build(writer: &GgufWriter) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&Gguf::from_bytes(writer.to_bytes()).expect("the file itself is valid"))
}

fn tiny() -> Tokenizer {
    build(&TinyModel::default().writer()).expect("the tiny model has a tokenizer")
}

fn refused(writer: &GgufWriter, words: &[&str]) {
    let message = build(writer).expect_err("the tokenizer is refused").to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

/// A sentencepiece vocabulary: structure, all bytes, and pieces with scores.
fn sentence_piece(pieces: &[(&str, f32)]) -> GgufWriter {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    let mut scores = vec![0.0; 3];
    let mut kinds = vec![2, 3, 3];
    for byte in 0..=255 {
        tokens.push(format!("<0x{byte:02X}>"));
        scores.push(0.0);
        kinds.push(6);
    }
    for (piece, score) in pieces {
        tokens.push((*piece).to_owned());
        scores.push(*score);
        kinds.push(1);
    }
    let mut writer = GgufWriter::new();
    writer
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &scores)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2);
    writer
}

const PIECES: &[(&str, f32)] = &[
    ("▁", -9.0),
    ("a", -8.0),
    ("b", -7.0),
    ("c", -6.0),
    ("ab", -2.0),
    ("bc", -1.0),
    ("▁a", -3.0),
    ("▁ab", -4.0),
    ("s", -5.0),
    (">", -5.5),
    ("s>", -0.5),
    ("<", -5.0),
    ("<s", -0.2),
];

fn texts(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<String> {
    tokens.iter().map(|&token| tokenizer.decode_special(&[token])).collect()
}

#[test]
fn the_best_score_joins_first() {
    let tokenizer = build(&sentence_piece(PIECES)).unwrap();
    assert_eq!(texts(&tokenizer, &tokenizer.encode("abc", false)), [" a", "bc"]);
    assert_eq!(texts(&tokenizer, &tokenizer.encode("ab", false)), [" ab"]);
    let without = build(sentence_piece(PIECES).bool("tokenizer.ggml.add_space_prefix", false)).unwrap();
    assert_eq!(texts(&without, &without.encode("ab abc", false)), ["ab", " a", "bc"]);
}

#[test]
fn characters_without_a_token_become_bytes() {
    let tokenizer = build(&sentence_piece(PIECES)).unwrap();
    let tokens = tokenizer.encode("é\n😀", false);
    assert_eq!(tokens.len(), 1 + 2 + 1 + 4);
    assert_eq!(tokenizer.token_bytes(tokens[1]), [0xc3]);
    assert_eq!(tokenizer.decode(&tokens), "é\n😀");
}

#[test]
fn the_space_prefix_goes_once_before_every_stretch_of_text() {
    let tokenizer = build(&sentence_piece(PIECES)).unwrap();
    assert_eq!(
        texts(&tokenizer, &tokenizer.encode("<s>a</s>b", true)),
        ["<s>", " a", "</s>", " ", "b"]
    );
    let segments = [
        Segment {
            text: "a",
            parse_special: true,
        },
        Segment {
            text: "b",
            parse_special: false,
        },
    ];
    assert_eq!(tokenizer.encode_segments(&segments), tokenizer.encode("ab", false));
    assert!(tokenizer.encode("", true).is_empty());
}

/// `<s` and `>` are tokens here, and `<s>` is what they join to: structure must not come out of merging.
#[test]
fn merging_never_makes_structure() {
    let tokenizer = build(&sentence_piece(PIECES)).unwrap();
    let tokens = tokenizer.encode("<s>", false);
    assert!(
        tokens.iter().all(|&token| !tokenizer.is_control(token)),
        "{:?}",
        texts(&tokenizer, &tokens)
    );
    assert_eq!(tokenizer.decode(&tokens), "<s>");
    assert_eq!(tokenizer.encode("<s>", true), [1]);
}

#[test]
fn sentencepiece_wants_a_bos_unless_told_otherwise() {
    assert!(build(&sentence_piece(PIECES)).unwrap().adds_bos());
    assert!(
        !build(sentence_piece(PIECES).bool("tokenizer.ggml.add_bos_token", false))
            .unwrap()
            .adds_bos()
    );
    let nameless = build(sentence_piece(PIECES).remove("tokenizer.ggml.bos_token_id")).unwrap();
    assert!(!nameless.adds_bos());
    assert_eq!(nameless.with_bos(vec![5]), [5]);
}

#[test]
fn there_is_exactly_one_bos() {
    let with = build(&sentence_piece(PIECES)).unwrap();
    for tokens in [vec![7, 8], vec![1, 7, 8], vec![1, 1, 7, 8]] {
        assert_eq!(with.with_bos(tokens), [1, 7, 8]);
    }
    assert_eq!(with.with_bos(Vec::new()), [1]);
    // A later one is the text's own business.
    assert_eq!(with.with_bos(vec![7, 1]), [1, 7, 1]);
    // Qwen 2 names a BOS but does not want it.
    let without = tiny();
    assert!(without.bos().is_some());
    assert_eq!(without.with_bos(vec![7, 8]), [7, 8]);
}

#[test]
fn every_token_that_ends_a_turn_is_known() {
    let tokenizer = tiny();
    let ends: Vec<String> = texts(&tokenizer, &tokenizer.eos_tokens().iter().copied().collect::<Vec<_>>());
    assert_eq!(ends, ["<|endoftext|>", "<|im_end|>"]);
    assert!(tokenizer.is_eos(tokenizer.eos().unwrap()));

    // Llama 3: the file names one, the others are known by their texts or by keys of their own.
    let mut writer = sentence_piece(PIECES);
    writer
        .u32("tokenizer.ggml.eot_token_id", 259)
        .u32("tokenizer.ggml.eom_token_id", 260);
    let tokenizer = build(&writer).unwrap();
    assert_eq!(
        tokenizer.eos_tokens().iter().copied().collect::<Vec<_>>(),
        [2, 259, 260]
    );
    // A well-known end token marked as ordinary text by mistake still is one.
    let tokenizer = build(&sentence_piece(&[("<|eot_id|>", 0.0), ("<|eom_id|>", 0.0)])).unwrap();
    assert_eq!(
        tokenizer.eos_tokens().iter().copied().collect::<Vec<_>>(),
        [2, 259, 260]
    );
    assert!(tokenizer.is_control(259));
}

#[test]
fn control_tokens_are_recognised_only_where_allowed() {
    let tokenizer = tiny();
    let end = tokenizer.special_token("<|im_end|>").unwrap();
    assert_eq!(tokenizer.encode("<|im_end|>", true), [end]);
    let spelled = tokenizer.encode("<|im_end|>", false);
    assert!(!spelled.contains(&end));
    assert_eq!(tokenizer.decode(&spelled), "<|im_end|>");
    assert_eq!(tokenizer.decode(&[end]), "");
    assert_eq!(tokenizer.decode_special(&[end]), "<|im_end|>");
    let segments = [
        Segment {
            text: "<|im_",
            parse_special: true,
        },
        Segment {
            text: "end|>",
            parse_special: true,
        },
    ];
    assert!(!tokenizer.encode_segments(&segments).contains(&end));
}

#[test]
fn numbers_outside_the_vocabulary_are_nothing() {
    let tokenizer = tiny();
    for token in [tokenizer.vocabulary() as u32, u32::MAX] {
        assert_eq!(tokenizer.decode(&[token]), "");
        assert!(!tokenizer.is_control(token) && !tokenizer.is_eos(token));
    }
}

#[test]
fn what_the_file_lacks_is_named() {
    let tiny = || TinyModel::default().writer();
    for key in ["tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        refused(tiny().remove(key), &[key, "missing"]);
    }
    refused(
        sentence_piece(PIECES).remove("tokenizer.ggml.scores"),
        &["tokenizer.ggml.scores", "missing"],
    );
    refused(
        tiny()
            .remove("tokenizer.ggml.model")
            .string("tokenizer.ggml.model", "t5"),
        &["`t5`"],
    );
    refused(tiny().remove(PRE).string(PRE, "made-up-bpe"), &["`made-up-bpe`"]);
    let key = "tokenizer.ggml.merges";
    refused(tiny().remove(key).strings(key, &["nospace"]), &[key, "no usable rule"]);
    let key = "tokenizer.ggml.token_type";
    refused(tiny().remove(key).i32s(key, &[1, 2]), &[key, "2 entries"]);
    let key = "tokenizer.ggml.scores";
    refused(
        sentence_piece(PIECES).remove(key).f32s(key, &[0.0]),
        &[key, "1 entries"],
    );
    let key = "tokenizer.ggml.eos_token_id";
    refused(tiny().remove(key).u32(key, 1_000_000), &[key, "1000000"]);
    let key = "tokenizer.ggml.tokens";
    refused(tiny().remove(key).strings(key, &[""; 0]), &["empty"]);
    refused(tiny().remove(key).i32s(key, &[1]), &[key, "array of strings"]);
}

#[test]
fn a_missing_or_default_scheme_is_read_with_the_general_one() {
    let text = "Some text, 1234 and $%&!";
    let missing = build(TinyModel::default().writer().remove(PRE)).unwrap();
    let default = build(TinyModel::default().writer().remove(PRE).string(PRE, "default")).unwrap();
    assert_eq!(missing.encode(text, false), default.encode(text, false));
    assert_eq!(missing.decode(&missing.encode(text, false)), text);
}

/// Vocabularies have entries that no alphabet explains, rules for tokens that are not there, and rules twice.
#[test]
fn odd_tokens_and_rules_are_tolerated() {
    let key = "tokenizer.ggml.tokens";
    let mut tokens: Vec<Vec<u8>> = (0..=255_u8)
        .map(|byte| tiny().token_bytes(byte.into()).to_vec())
        .map(|bytes| alphabet(bytes[0]))
        .collect();
    tokens.extend([b"\xff\xfe".to_vec(), "▁odd".into(), Vec::new(), b"ab".to_vec()]);
    let mut writer = TinyModel::default().writer();
    for removed in [
        key,
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",
    ] {
        writer.remove(removed);
    }
    writer.strings(key, &tokens);
    // "bc" is no token, so "abc" ends as bytes if it is joined; rules without two sides are nothing.
    writer.strings(
        "tokenizer.ggml.merges",
        &["b c", "a bc", "a b", "a b", "nospace", " ", "", "x ", "▁ odd"],
    );
    let tokenizer = build(&writer).unwrap();
    assert_eq!(texts(&tokenizer, &tokenizer.encode("abc", false)), ["a", "b", "c"]);
    assert_eq!(texts(&tokenizer, &tokenizer.encode("ab", false)), ["ab"]);
    assert_eq!(tokenizer.token_bytes(256), b"\xff\xfe");
    assert_eq!(tokenizer.decode(&[256, 257, 258]), "\u{fffd}\u{fffd}▁odd");
    assert!(tokenizer.eos_tokens().is_empty());
}

/// The character byte-level vocabularies write for a byte.
fn alphabet(byte: u8) -> Vec<u8> {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = if printable(byte) {
        u32::from(byte)
    } else {
        0x100 + (0..byte).filter(|&before| !printable(before)).count() as u32
    };
    char::from_u32(code).unwrap().to_string().into_bytes()
}

proptest! {
    #[test]
    fn any_text_survives_the_round_trip(text in ".*") {
        for tokenizer in [tiny(), build(&sentence_piece(PIECES)).unwrap()] {
            prop_assert_eq!(&tokenizer.decode(&tokenizer.encode(&text, false)), &text);
        }
    }

    #[test]
    fn streamed_chunks_are_the_decoded_text(tokens in prop::collection::vec(0_u32..280, 0..60)) {
        let tokenizer = tiny();
        let mut stream = tokenizer.stream();
        let mut text: String = tokens.iter().map(|&token| stream.push(token)).collect();
        text += &stream.finish();
        prop_assert_eq!(text, tokenizer.decode(&tokens));
    }
}

#[derive(Deserialize)]
struct Golden {
    bos: u32,
    eos: u32,
    vocabulary: usize,
    /// Bytes of some tokens, in hexadecimal.
    pieces: BTreeMap<u32, String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    plain: Vec<u32>,
    /// With control tokens recognised, when that differs.
    special: Option<Vec<u32>>,
}

fn hexadecimal(digits: &str) -> Vec<u8> {
    let pairs = digits
        .as_bytes()
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).expect("the golden file is ASCII"));
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).expect("two digits"))
        .collect()
}

/// Compares with llama.cpp on a model of the catalog, or the file the environment gives in its place.
fn agrees_with_llama_cpp(model: &str, variable: &str, golden: &str) {
    let path = std::env::var_os(variable).map_or_else(|| models::real(model), PathBuf::from);
    let golden: Golden = serde_json::from_str(golden).expect("the golden file is valid");
    let file = Gguf::open(path).unwrap();
    let start = Instant::now();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    eprintln!("built in {:?}", start.elapsed());
    assert_eq!(tokenizer.vocabulary(), golden.vocabulary);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(golden.bos), Some(golden.eos)));
    for (token, piece) in golden.pieces {
        assert_eq!(tokenizer.token_bytes(token), hexadecimal(&piece), "token {token}");
    }
    for Case { text, plain, special } in golden.cases {
        assert_eq!(tokenizer.encode(&text, false), plain, "{text:?}");
        assert_eq!(tokenizer.encode(&text, true), special.unwrap_or(plain), "{text:?}");
    }
}

#[test]
fn real_model_smollm2_tokens_are_those_of_llama_cpp() {
    agrees_with_llama_cpp(
        "smollm2-135m",
        "INERTIAKV_TEST_SMOLLM2",
        include_str!("../golden/tokenizer-smollm2.json"),
    );
}

#[test]
fn real_model_qwen_tokens_are_those_of_llama_cpp() {
    agrees_with_llama_cpp(
        "qwen2.5-coder-0.5b",
        "INERTIAKV_TEST_QWEN",
        include_str!("../golden/tokenizer-qwen.json"),
    );
}

#[test]
fn real_model_gemma_tokens_are_those_of_llama_cpp() {
    agrees_with_llama_cpp(
        "gemma3-270m",
        "INERTIAKV_TEST_GEMMA",
        include_str!("../golden/tokenizer-gemma3.json"),
    );
}
