//! What the loader concludes from metadata and tensors, and what it refuses.

use inertiakv::config::{Architecture, ConfigError, ModelConfig, RopeScaling, RopeStyle};
use inertiakv::gguf::{GgmlType, Gguf, GgufWriter};
use inertiakv::testing::TinyModel;

fn config(writer: &GgufWriter) -> Result<ModelConfig, ConfigError> {
    ModelConfig::from_gguf(&Gguf::from_bytes(writer.to_bytes()).expect("the file itself is valid"))
}

fn llama() -> GgufWriter {
    TinyModel::default().writer()
}

fn qwen2() -> GgufWriter {
    TinyModel {
        family: Architecture::Qwen2,
        ..TinyModel::default()
    }
    .writer()
}

fn refused(writer: &GgufWriter, words: &[&str]) {
    let message = config(writer).expect_err("the model is refused").to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

/// Replaces one integer.
fn refused_with(key: &str, value: u32, words: &[&str]) {
    refused(llama().remove(key).u32(key, value), &[&[key], words].concat());
}

#[test]
fn both_families_are_understood() {
    for (writer, family, style) in [
        (llama(), Architecture::Llama, RopeStyle::Interleaved),
        (qwen2(), Architecture::Qwen2, RopeStyle::HalfSplit),
    ] {
        let config = config(&writer).unwrap();
        assert_eq!(config.architecture, family);
        assert_eq!(config.rope.style, style);
        assert_eq!(config.qkv_bias, family == Architecture::Qwen2);
        assert!(!config.output_bias);
        assert!(config.tied_embeddings);
        assert_eq!(
            (config.layers, config.hidden, config.heads, config.kv_heads),
            (2, 64, 4, 2)
        );
        assert_eq!((config.head_dim, config.group(), config.feed_forward), (32, 2, 96));
        assert_eq!(config.context_length, 4096);
        assert_eq!(config.rope.dimensions, 32);
        assert_eq!(config.rope.scaling, RopeScaling::None);
        assert_eq!(config.rope.frequency_factors, None);
    }
}

/// A tiny model of a family, with a window in every layer but each second.
fn windowed(family: Architecture) -> GgufWriter {
    TinyModel {
        family,
        layers: 4,
        window: Some(64),
        ..TinyModel::default()
    }
    .writer()
}

#[test]
fn every_family_has_what_sets_it_apart() {
    for family in Architecture::ALL {
        let config = config(&windowed(family)).unwrap();
        let is_gemma = family == Architecture::Gemma3;
        assert_eq!(
            config.qk_norm,
            !matches!(family, Architecture::Llama | Architecture::Qwen2)
        );
        assert_eq!(config.post_norms, is_gemma);
        assert_eq!(config.embedding_scale, if is_gemma { 8.0 } else { 1.0 });
        assert_eq!(config.experts.is_some(), family == Architecture::Qwen3Moe);
        let windows: Vec<_> = (0..4).map(|layer| config.window(layer)).collect();
        assert_eq!(windows, [Some(64), None, Some(64), None], "{family}");
    }
    let experts = config(&windowed(Architecture::Qwen3Moe)).unwrap().experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.feed_forward), (4, 2, 96));
    assert!(experts.normalised && experts.layers == [true; 4]);
}

#[test]
fn layers_with_a_window_are_a_period_or_a_list() {
    let (gemma, pattern) = (Architecture::Gemma3, "gemma3.attention.sliding_window_pattern");
    let windows = |writer: &GgufWriter| {
        let config = config(writer).unwrap();
        (0..4).map(|layer| config.window(layer).is_some()).collect::<Vec<_>>()
    };
    let mut writer = windowed(gemma);
    // Without a word about it, each sixth layer of Gemma 3 sees everything.
    assert_eq!(windows(writer.remove(pattern)), [true; 4]);
    assert_eq!(windows(writer.u32(pattern, 3)), [true, true, false, true]);
    assert_eq!(
        windows(writer.remove(pattern).i32s(pattern, &[0, 1, 0, 0])),
        [false, true, false, false]
    );
    refused(writer.remove(pattern).i32s(pattern, &[0, 1, 0]), &[pattern, "4 layers"]);
    let sliding = config(&windowed(gemma)).unwrap().sliding.unwrap();
    assert_eq!(sliding.rope.base, 10_000.0);
}

#[test]
fn damaged_experts_are_named() {
    let name = "blk.1.ffn_up_exps.weight";
    let mut writer = windowed(Architecture::Qwen3Moe);
    refused(writer.clone().remove_tensor(name), &[name, "missing"]);
    writer
        .remove_tensor(name)
        .tensor(name, &[64, 96, 3], GgmlType::F32, &vec![0; 64 * 96 * 3 * 4]);
    refused(&writer, &[name, "[64, 96, 4]"]);
    for (key, value) in [
        ("expert_used_count", 5),
        ("expert_used_count", 0),
        ("expert_feed_forward_length", 0),
    ] {
        let key = format!("qwen3moe.{key}");
        let mut writer = windowed(Architecture::Qwen3Moe);
        refused(writer.remove(&key).u32(&key, value), &[&key]);
    }
    refused(
        windowed(Architecture::Qwen3Moe).u32("qwen3moe.expert_shared_count", 1),
        &["experts that all tokens share"],
    );
}

#[test]
fn an_output_matrix_is_used_when_there_is_one() {
    let writer = TinyModel {
        tied: false,
        ..TinyModel::default()
    }
    .writer();
    assert!(!config(&writer).unwrap().tied_embeddings);
}

#[test]
fn other_architectures_are_refused_with_the_list_of_supported_ones() {
    let mut writer = llama();
    writer.remove("general.architecture");
    refused(&writer, &["general.architecture", "missing"]);
    refused(
        writer.string("general.architecture", "mamba"),
        &["`mamba`", "llama, qwen2"],
    );
}

/// The prefix of keys is the architecture, not a fixed word.
#[test]
fn keys_of_another_family_do_not_count() {
    let mut writer = llama();
    writer
        .remove("general.architecture")
        .string("general.architecture", "qwen2");
    refused(&writer, &["qwen2.block_count"]);
}

#[test]
fn the_head_size_is_the_stated_one_or_the_quotient() {
    let mut writer = TinyModel {
        head_dim: 16,
        ..TinyModel::default()
    }
    .writer();
    for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        writer.remove(&format!("llama.{key}"));
    }
    let read = config(&writer).unwrap();
    assert_eq!((read.head_dim, read.rope.dimensions), (16, 16));
    let mut writer = TinyModel {
        heads: 3,
        kv_heads: 1,
        ..TinyModel::default()
    }
    .writer();
    refused(
        writer.remove("llama.attention.key_length"),
        &["llama.embedding_length", "3 heads"],
    );
}

#[test]
fn biases_go_by_the_tensors_that_are_there() {
    let mut writer = llama();
    for layer in 0..2 {
        for (part, rows) in [("q", 128), ("k", 64), ("v", 64), ("output", 64)] {
            writer.tensor(
                &format!("blk.{layer}.attn_{part}.bias"),
                &[rows],
                GgmlType::F32,
                &vec![0; rows * 4],
            );
        }
    }
    let read = config(&writer).unwrap();
    assert!(read.qkv_bias && read.output_bias);
    refused(
        writer.clone().remove_tensor("blk.1.attn_k.bias"),
        &["blk.0.attn_q.bias", "blk.1.attn_k.bias"],
    );
    refused(
        writer.remove_tensor("blk.1.attn_output.bias"),
        &["blk.0.attn_output.bias", "blk.1.attn_output.bias"],
    );

    let mut without = qwen2();
    for layer in 0..2 {
        for part in ["q", "k", "v"] {
            without.remove_tensor(&format!("blk.{layer}.attn_{part}.bias"));
        }
    }
    assert!(!config(&without).unwrap().qkv_bias);
}

#[test]
fn rotary_factors_are_read() {
    let factors: Vec<u8> = (1..=16).flat_map(|factor| (factor as f32).to_le_bytes()).collect();
    let mut writer = llama();
    writer.tensor("rope_freqs.weight", &[16], GgmlType::F32, &factors);
    let read = config(&writer).unwrap().rope.frequency_factors.unwrap();
    assert_eq!(read.len(), 16);
    assert!((read[15] - 16.0).abs() < f32::EPSILON);

    let mut wrong_length = llama();
    wrong_length.tensor("rope_freqs.weight", &[8], GgmlType::F32, &factors[..32]);
    refused(&wrong_length, &["rope_freqs.weight", "[16]"]);
    let mut zeros = llama();
    zeros.tensor("rope_freqs.weight", &[16], GgmlType::F32, &[0; 64]);
    refused(&zeros, &["rope_freqs.weight"]);
}

#[test]
fn rope_scaling_is_applied_or_refused() {
    let scaled = |kind: Option<&str>, factor: Option<f32>| {
        let mut writer = llama();
        if let Some(kind) = kind {
            writer.string("llama.rope.scaling.type", kind);
        }
        if let Some(factor) = factor {
            writer.f32("llama.rope.scaling.factor", factor);
        }
        writer
    };
    let read = |kind, factor| config(&scaled(kind, factor)).unwrap().rope.scaling;
    assert_eq!(read(Some("linear"), Some(4.0)), RopeScaling::Linear(4.0));
    assert_eq!(read(None, Some(2.0)), RopeScaling::Linear(2.0));
    assert_eq!(read(Some("none"), Some(2.0)), RopeScaling::None);
    assert_eq!(read(Some("linear"), None), RopeScaling::None);
    assert_eq!(read(None, Some(1.0)), RopeScaling::None);
    assert_eq!(
        config(llama().f32("llama.rope.scale_linear", 8.0))
            .unwrap()
            .rope
            .scaling,
        RopeScaling::Linear(8.0)
    );
    let mut writer = scaled(Some("yarn"), Some(4.0));
    writer.u32("llama.rope.scaling.original_context_length", 1024);
    let RopeScaling::Yarn(yarn) = config(&writer).unwrap().rope.scaling else {
        panic!("YaRN is understood");
    };
    assert_eq!((yarn.factor, yarn.original_context), (4.0, 1024));
    assert!((yarn.attention_factor - 1.138_629_4).abs() < 1e-6);
    let plain = config(&llama()).unwrap().attention_scale;
    let stretched = config(&writer).unwrap().attention_scale;
    assert!((stretched / plain - yarn.attention_factor.powi(2)).abs() < 1e-6);
    // The factor of dot products would not be that of the elements that are not rotated.
    writer
        .remove("llama.rope.dimension_count")
        .u32("llama.rope.dimension_count", 16);
    refused(&writer, &["YaRN", "16 of 32"]);
    refused(&scaled(Some("longrope"), None), &["longrope"]);
    for factor in [-1.0, 0.5, f32::NAN, f32::INFINITY] {
        refused(&scaled(Some("linear"), Some(factor)), &["llama.rope.scaling.factor"]);
    }
}

#[test]
fn numbers_outside_reason_are_refused_by_key() {
    for key in [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "attention.head_count",
    ] {
        let key = format!("llama.{key}");
        refused_with(&key, 0, &["0"]);
        refused_with(&key, u32::MAX, &["4294967295"]);
        refused(llama().remove(&key), &[&key, "missing"]);
        refused(llama().remove(&key).string(&key, "many"), &[&key, "a string"]);
    }
    refused_with("llama.attention.head_count_kv", 0, &["0"]);
    refused(
        llama()
            .remove("llama.attention.head_count_kv")
            .u32("llama.attention.head_count_kv", 3),
        &["4 query heads", "3 KV heads"],
    );
    refused_with("llama.attention.key_length", 33, &["even"]);
    refused_with("llama.attention.key_length", 0, &["even"]);
    refused_with("llama.attention.key_length", 1024, &["512"]);
    refused(
        llama()
            .remove("llama.attention.value_length")
            .u32("llama.attention.value_length", 64),
        &["value heads of 64"],
    );
    refused_with("llama.rope.dimension_count", 64, &["32"]);
    refused_with("llama.rope.dimension_count", 31, &["even"]);
    for (key, value) in [
        ("llama.attention.layer_norm_rms_epsilon", 0.0),
        ("llama.attention.layer_norm_rms_epsilon", f32::NAN),
        ("llama.rope.freq_base", -1.0),
        ("llama.rope.freq_base", f32::INFINITY),
    ] {
        refused(llama().remove(key).f32(key, value), &[key]);
    }
    refused(
        llama().remove("llama.attention.layer_norm_rms_epsilon"),
        &["layer_norm_rms_epsilon", "missing"],
    );
}

#[test]
fn a_missing_kv_head_count_means_one_per_query_head() {
    let mut writer = TinyModel {
        kv_heads: 4,
        ..TinyModel::default()
    }
    .writer();
    writer.remove("llama.attention.head_count_kv");
    assert_eq!(config(&writer).unwrap().kv_heads, 4);
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    for name in [
        "token_embd.weight",
        "output_norm.weight",
        "blk.1.attn_v.weight",
        "blk.0.ffn_norm.weight",
    ] {
        refused(llama().remove_tensor(name), &[name, "missing"]);
    }
    for name in [
        "output_norm.weight",
        "blk.1.attn_q.weight",
        "blk.0.ffn_down.weight",
        "token_embd.weight",
    ] {
        let mut writer = llama();
        writer
            .remove_tensor(name)
            .tensor(name, &[32, 3], GgmlType::F32, &[0; 384]);
        refused(&writer, &[name, "[32, 3]"]);
    }
    let mut flat = llama();
    flat.remove_tensor("token_embd.weight")
        .tensor("token_embd.weight", &[64], GgmlType::F32, &[0; 256]);
    refused(&flat, &["token_embd.weight", "[64]"]);
}

#[test]
fn types_without_a_kernel_are_named() {
    let iq3_s = GgmlType::from_id(21).unwrap();
    let mut writer = llama();
    let name = "blk.1.ffn_up.weight";
    writer
        .remove_tensor(name)
        .tensor(name, &[256, 96], iq3_s, &vec![0; 96 * 110]);
    refused(&writer, &[name, "[64, 96]"]);
    let wide = TinyModel {
        hidden: 256,
        ..TinyModel::default()
    };
    let mut writer = wide.writer();
    writer
        .remove_tensor(name)
        .tensor(name, &[256, 96], iq3_s, &vec![0; 96 * 110]);
    refused(&writer, &[name, "IQ3_S", "Q4_K", "IQ4_XS"]);
    let mut writer = llama();
    let name = "output_norm.weight";
    writer.remove_tensor(name).tensor(name, &[64], GgmlType::Q8_0, &[0; 68]);
    refused(&writer, &[name, "Q8_0", "F32"]);
}

#[test]
fn what_the_decoder_would_ignore_is_refused() {
    refused(llama().u32("llama.expert_count", 8), &["mixture of experts"]);
    assert!(config(llama().u32("llama.expert_count", 0)).is_ok());
    let window = "llama.attention.sliding_window";
    for (size, expected) in [(0, None), (1024, Some(1024)), (4096, None)] {
        let config = config(llama().u32(window, size)).unwrap();
        assert_eq!(config.window(0), expected);
        assert_eq!(config.window(1), expected);
    }
    refused(
        llama().f32("llama.final_logit_softcapping", 30.0),
        &["soft limits of logits"],
    );
    refused(
        llama().raw("split.count", 2, &3_u16.to_le_bytes()),
        &["several GGUF files"],
    );
    for name in [
        "blk.0.attn_q_norm.weight",
        "blk.2.attn_q.weight",
        "blk.1.ffn_up.bias",
        "position_embd.weight",
    ] {
        let mut writer = llama();
        writer.tensor(name, &[32], GgmlType::F32, &[0; 128]);
        refused(&writer, &[name, "llama"]);
    }
}
