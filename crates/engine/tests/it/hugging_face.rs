//! Folders as Hugging Face has them: tokenizers like their own libraries', and what is refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use inertiakv::gguf::Gguf;
use inertiakv::tokenizer::Tokenizer;
use inertiakv::{Engine, EngineOptions, WeightType, open_model};
use serde_json::{Value, json};
use tempfile::TempDir;

fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(path)
}

fn read(path: &str) -> Value {
    serde_json::from_slice(&fs::read(golden(path)).unwrap()).unwrap()
}

/// A copy of a family's folder.
fn copy(family: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(golden(&format!("families/{family}"))).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

/// Changes a JSON file of a folder.
fn change(folder: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = folder.join(file);
    let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

fn refused(folder: &Path, words: &[&str]) {
    let error = Engine::open(folder, &EngineOptions::default())
        .err()
        .expect("the folder is refused");
    let message = error.to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

/// Refused once a key of `config.json` has this value.
fn refused_with(family: &str, key: &str, value: Value, words: &[&str]) {
    let folder = copy(family);
    change(folder.path(), "config.json", |config| config[key] = value);
    refused(folder.path(), words);
}

#[test]
fn tokenizers_cut_text_as_their_own_libraries_do() {
    let texts: Vec<String> = serde_json::from_value(read("tokenizers/texts.json")).unwrap();
    for name in [
        "llama3",
        "qwen",
        "gpt2",
        "digits",
        "llama2",
        "mistral",
        "metaspace",
        "gemma",
    ] {
        let folder = copy("llama-linear");
        fs::copy(
            golden(&format!("tokenizers/{name}.json")),
            folder.path().join("tokenizer.json"),
        )
        .unwrap();
        let tokenizer = Tokenizer::from_gguf(&open_model(folder.path()).unwrap()).unwrap();
        let cases: Vec<Vec<u32>> = serde_json::from_value(read(&format!("tokenizers/{name}.cases.json"))).unwrap();
        assert_eq!(cases.len(), texts.len());
        for (text, expected) in texts.iter().zip(&cases) {
            assert_eq!(&tokenizer.encode(text, true), expected, "{name}: {text:?}");
        }
    }
}

/// The same from the pieces and scores that GGUF files keep of a sentencepiece model.
#[test]
fn sentencepiece_in_gguf_cuts_text_as_sentencepiece_does() {
    let texts: Vec<String> = serde_json::from_value(read("tokenizers/texts.json")).unwrap();
    for name in ["sentencepiece", "sentencepiece-plain"] {
        let model = read(&format!("tokenizers/{name}.json"));
        let list = |key: &str| model[key].as_array().unwrap().clone();
        let pieces: Vec<String> = list("pieces")
            .iter()
            .map(|piece| piece.as_str().unwrap().to_owned())
            .collect();
        let scores: Vec<f32> = list("scores")
            .iter()
            .map(|score| score.as_f64().unwrap() as f32)
            .collect();
        let kinds: Vec<i32> = list("kinds").iter().map(|kind| kind.as_i64().unwrap() as i32).collect();
        let mut writer = inertiakv::gguf::GgufWriter::new();
        writer
            .string("tokenizer.ggml.model", "llama")
            .strings("tokenizer.ggml.tokens", &pieces)
            .f32s("tokenizer.ggml.scores", &scores)
            .i32s("tokenizer.ggml.token_type", &kinds)
            .u32("tokenizer.ggml.bos_token_id", 1)
            .bool("tokenizer.ggml.add_space_prefix", model["space_prefix"] == true);
        let tokenizer = Tokenizer::from_gguf(&Gguf::from_bytes(writer.to_bytes()).unwrap()).unwrap();
        let cases: Vec<Vec<u32>> = serde_json::from_value(read(&format!("tokenizers/{name}.cases.json"))).unwrap();
        for (text, expected) in texts.iter().zip(&cases) {
            assert_eq!(&tokenizer.encode(text, false), expected, "{name}: {text:?}");
        }
    }
}

#[test]
fn special_tokens_come_from_all_files_and_not_from_user_text() {
    let folder = copy("llama-linear");
    change(folder.path(), "generation_config.json", |generation| {
        generation["eos_token_id"] = json!([63, 40]);
    });
    fs::write(
        folder.path().join("chat_template.jinja"),
        "{{ bos_token }}{{ messages[0].content }}",
    )
    .unwrap();
    let engine = Engine::open(folder.path(), &EngineOptions::default()).unwrap();
    let tokenizer = engine.tokenizer();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(62), Some(63)));
    assert!(tokenizer.is_eos(63) && tokenizer.is_eos(40) && !tokenizer.is_eos(41));
    assert!(!tokenizer.adds_bos());
    assert_eq!(tokenizer.encode("<s>the</s>", true), [62, 31, 63]);
    assert!(!tokenizer.encode("<s>the</s>", false).iter().any(|&token| token > 61));
    let source = engine.chat_template().unwrap().source();
    assert!(source.contains("messages[0]"), "{source}");
    assert_eq!(engine.name(), folder.path().file_name().unwrap().to_string_lossy());

    change(folder.path(), "tokenizer.json", |tokenizer| {
        tokenizer["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {},
        });
    });
    let engine = Engine::open(folder.path(), &EngineOptions::default()).unwrap();
    assert!(engine.tokenizer().adds_bos());
}

#[test]
fn what_a_folder_lacks_is_named() {
    for (family, file, name) in [
        ("llama", "config.json", "config.json"),
        ("llama", "tokenizer.json", "tokenizer.json"),
        (
            "llama",
            "model-00003-of-00007.safetensors",
            "model-00003-of-00007.safetensors",
        ),
        ("qwen3", "model.safetensors", "model.safetensors"),
    ] {
        let folder = copy(family);
        fs::remove_file(folder.path().join(file)).unwrap();
        refused(folder.path(), &[name, "has no"]);
    }
    for key in ["hidden_size", "num_hidden_layers", "max_position_embeddings"] {
        refused_with("qwen3", key, Value::Null, &[key]);
    }
}

/// A truncated file maps as zeros and would answer nonsense.
#[test]
fn damaged_shards_are_refused() {
    let folder = copy("llama");
    let shard = folder.path().join("model-00002-of-00007.safetensors");
    let bytes = fs::read(&shard).unwrap();
    for length in [bytes.len() - 1, bytes.len() / 2, 100, 7, 0] {
        fs::write(&shard, &bytes[..length]).unwrap();
        refused(folder.path(), &["model-00002-of-00007.safetensors"]);
    }
    fs::write(&shard, [&bytes[..], b"x"].concat()).unwrap();
    refused(folder.path(), &["model-00002-of-00007.safetensors", "damaged"]);
    fs::write(&shard, &bytes).unwrap();

    let index = "model.safetensors.index.json";
    let folder = copy("llama");
    change(folder.path(), index, |index| {
        let map = index["weight_map"].as_object_mut().unwrap();
        map.remove("model.layers.1.mlp.up_proj.weight").unwrap();
    });
    refused(folder.path(), &["model.layers.1.mlp.up_proj.weight", "index.json"]);
    let folder = copy("llama");
    change(folder.path(), index, |index| {
        index["weight_map"]["model.extra.weight"] = json!("model-00001-of-00007.safetensors");
    });
    refused(
        folder.path(),
        &["model.extra.weight", "model-00001-of-00007.safetensors"],
    );
    let folder = copy("llama");
    change(folder.path(), index, |index| {
        index["weight_map"]["model.extra.weight"] = json!("../elsewhere.safetensors");
    });
    refused(folder.path(), &["../elsewhere.safetensors"]);
}

#[test]
fn what_would_be_computed_wrongly_is_refused_by_name() {
    refused_with(
        "qwen3",
        "model_type",
        json!("mamba"),
        &["`mamba`", "qwen3_moe", "mistral"],
    );
    refused_with("qwen3", "hidden_act", json!("relu"), &["`relu`"]);
    refused_with("gemma3", "hidden_activation", json!("silu"), &["`silu`"]);
    refused_with("gemma3", "final_logit_softcapping", json!(30.0), &["soft limits"]);
    refused_with(
        "gemma3",
        "use_bidirectional_attention",
        json!(true),
        &["attention to what comes later"],
    );
    refused_with(
        "qwen3",
        "quantization_config",
        json!({"quant_method": "awq"}),
        &["quantization_config"],
    );
    let longrope = json!({"rope_type": "longrope", "rope_theta": 10_000.0});
    refused_with("qwen3", "rope_parameters", longrope, &["`longrope`"]);
    refused_with("qwen3", "head_dim", json!(32), &["attn_q.weight"]);
    refused_with("qwen3moe", "num_experts", json!(7), &["ffn_gate_inp.weight"]);

    let folder = copy("qwen3");
    for (kind, words) in [
        (json!({"type": "Unigram", "vocab": []}), ["`Unigram`", "tokenizer.json"]),
        (
            json!({"type": "WordPiece", "vocab": {}}),
            ["`WordPiece`", "tokenizer.json"],
        ),
    ] {
        change(folder.path(), "tokenizer.json", |tokenizer| tokenizer["model"] = kind);
        refused(folder.path(), &words);
    }
    let folder = copy("qwen3");
    change(folder.path(), "tokenizer.json", |tokenizer| {
        tokenizer["normalizer"] = json!({"type": "Lowercase"});
    });
    refused(folder.path(), &["normalizer", "`Lowercase`"]);
}

/// Older files spell the same things otherwise.
#[test]
fn older_spellings_mean_the_same() {
    let same = |family: &str, edit: &dyn Fn(&mut Value)| {
        let folder = copy(family);
        let config = || {
            Engine::open(folder.path(), &EngineOptions::default())
                .unwrap()
                .config()
                .clone()
        };
        let before = config();
        change(folder.path(), "config.json", edit);
        assert_eq!(config(), before, "{family}");
    };
    same("llama", &|config| {
        let mut rope = config.as_object_mut().unwrap().remove("rope_parameters").unwrap();
        config["rope_theta"] = rope.as_object_mut().unwrap().remove("rope_theta").unwrap();
        rope["type"] = json!("llama3");
        config["rope_scaling"] = rope;
    });
    same("gemma3", &|config| {
        config["rope_theta"] = json!(1e6);
        config["rope_local_base_freq"] = json!(1e4);
        config["rope_scaling"] = json!({"rope_type": "linear", "factor": 8.0});
        config["sliding_window_pattern"] = json!(6);
        for key in ["rope_parameters", "layer_types", "_sliding_window_pattern"] {
            config.as_object_mut().unwrap().remove(key);
        }
    });
    same("gemma3", &|config| {
        let text = config.clone();
        *config = json!({"model_type": "gemma3", "text_config": text});
    });
    same("qwen3moe", &|config| {
        let experts = config
            .as_object_mut()
            .unwrap()
            .remove("num_local_experts")
            .unwrap_or(json!(6));
        config["num_experts"] = experts;
    });
    same("qwen2-window", &|config| {
        config.as_object_mut().unwrap().remove("layer_types");
    });
}

#[test]
fn rows_that_do_not_fill_blocks_are_refused_when_quantised() {
    let options = EngineOptions {
        quantise: Some(WeightType::Q4K),
        ..EngineOptions::default()
    };
    let error = Engine::open(&golden("families/qwen3"), &options)
        .err()
        .expect("rows of 32 values");
    let message = error.to_string();
    assert!(message.contains("256") && message.contains("Q4_K"), "{message}");
}
