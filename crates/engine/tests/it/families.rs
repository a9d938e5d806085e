//! Eviction across families: layers with a window stay out of it, experts and normed heads change nothing about it.

use std::path::PathBuf;

use inertiakv::gguf::GgmlType;
use inertiakv::policy::PolicyError;
use inertiakv::testing::TinyModel;
use inertiakv::{Engine, EngineOptions, Error, KvType, MemoryPlan, Method};
use inertiakv_kernels::linear::encode::decode;
use inertiakv_kernels::linear::{StoredType, WeightType};
use safetensors::SafeTensors;

use crate::models::{self, Family};
use crate::session::{decode as generate, method, prefilled, prompt};

fn windowed(family: Family, layers: usize, window: usize) -> Engine {
    let model = TinyModel {
        family,
        layers,
        context: 8192,
        tied: false,
        window: Some(window),
        ..TinyModel::default()
    };
    let file = models::written(&format!("window-{family}-{layers}-{window}.gguf"), &model.to_bytes());
    Engine::open(&file, &EngineOptions::default()).expect("it opens")
}

#[test]
fn every_family_evicts_down_to_its_budget() {
    for family in Family::ALL {
        let engine = windowed(family, 4, 40);
        for name in [
            "inertia:ratio=0.9",
            "h2o:ratio=0.9",
            "tova:ratio=0.9,at=decode",
            "expected-attention:ratio=0.9",
        ] {
            let Ok(method) = name.parse::<Method>() else { continue };
            let mut session = prefilled(&engine, name, &prompt(300));
            generate(&mut session, 3);
            let report = session.report();
            assert!(session.retained_entries() <= 33, "{family}, {method}: {report:?}");
            assert!(report.evictions > 0, "{family}, {method}");
        }
    }
}

#[test]
fn layers_with_a_window_hold_what_it_needs_and_are_not_counted() {
    let engine = windowed(Family::Gemma3, 4, 40);
    let shape = engine.info().shape;
    assert_eq!((shape.windowed_layers, shape.window), (2, Some(40)));
    let pool = engine.kv_pool();
    let mut session = prefilled(&engine, "inertia:tokens=64", &prompt(500));
    assert_eq!(
        session.kv_bytes(),
        pool.bytes_for(500),
        "a prompt is kept whole until the first step"
    );
    generate(&mut session, 70);
    assert_eq!(session.retained_entries(), 64);
    let full = pool.bytes_for(64) / 2;
    // 39 entries and up to 31 more that share a block with them.
    let windows = session.kv_bytes() - full;
    assert!(
        windows <= pool.bytes_for(39 + 31) / 2,
        "{windows} bytes in layers with a window"
    );
    assert!(session.kv_bytes() <= engine.settled_kv_bytes(64, 570));

    // Where nothing is evicted the other layers hold everything.
    let mut session = prefilled(&engine, "full", &prompt(500));
    generate(&mut session, 4);
    assert_eq!(session.retained_entries(), 504);
    assert!(session.kv_bytes() < pool.bytes_for(504) * 2 / 3);
}

/// What a window hides may leave or stay: it makes no difference.
#[test]
fn giving_up_hidden_entries_changes_no_token() {
    let engine = windowed(Family::Gemma3, 4, 40);
    let tokens = prompt(300);
    // One step of many tokens gives up hidden entries once, one of one token each time.
    let mut together = prefilled(&engine, "full", &tokens[..200]);
    together.step(&tokens[200..]).expect("a step");
    let mut alone = prefilled(&engine, "full", &tokens[..200]);
    for token in &tokens[200..] {
        alone.step(&[*token]).expect("a step");
    }
    let pairs = together.logits().unwrap().iter().zip(alone.logits().unwrap());
    let largest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(largest < 0.05, "{largest}");
}

#[test]
fn a_model_of_nothing_but_windows_runs_but_does_not_evict() {
    let model = TinyModel {
        context: 8192,
        tied: false,
        ..TinyModel::default()
    };
    let mut writer = model.writer();
    writer.u32("llama.attention.sliding_window", 40);
    let file = models::written("all-windows.gguf", &writer.to_bytes());
    let engine = Engine::open(&file, &EngineOptions::default()).expect("it opens");
    generate(&mut prefilled(&engine, "full", &prompt(200)), 3);
    let error = engine
        .session(&method("inertia:ratio=0.5"))
        .err()
        .expect("nothing can be evicted");
    assert!(matches!(error, Error::Policy(PolicyError::NoEvictableLayer)), "{error}");
}

#[test]
fn a_plan_says_what_fits() {
    let engine = windowed(Family::Gemma3, 4, 40);
    let plan = MemoryPlan::new(engine.config(), 1 << 20, KvType::F16).unwrap();
    // Two layers of two heads of 32 numbers, keys and values of two bytes.
    assert_eq!(plan.kv_bytes_per_1000_tokens, 1000 * 2 * 2 * 32 * 2 * 2);
    assert_eq!(plan.prefill_bytes, engine.kv_pool().bytes_for(8192));
    let bytes: Vec<usize> = plan.budgets.iter().map(|budget| budget.kv_bytes).collect();
    assert!(
        bytes.is_sorted_by(|a, b| a > b) && bytes[0] < plan.prefill_bytes,
        "{bytes:?}"
    );
    assert_eq!(plan.window_bytes, engine.settled_kv_bytes(0, 8192));
}

/// Bit for bit where the kept format holds the same numbers, and as near as it can where it does not.
#[test]
fn number_formats_mean_what_the_reference_says() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/quantisations.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut seen = 0;
    for id in 0..40 {
        let (Some(kind), Ok(stored)) = (GgmlType::from_id(id), StoredType::from_ggml_id(id)) else {
            continue;
        };
        let Ok(data) = tensors.tensor(&format!("{kind}.data")) else {
            assert!(
                stored == StoredType::Kept(WeightType::F32) || stored.kept_as().is_float(),
                "{kind}"
            );
            continue;
        };
        seen += 1;
        let values = tensors.tensor(&format!("{kind}.values")).unwrap();
        let (words, _) = values.data().as_chunks::<4>();
        let found = decode(stored.kept_as(), &stored.convert(data.data()));
        assert_eq!(found.len(), words.len(), "{kind}");
        for (block, (found, words)) in found.chunks(32).zip(words.chunks(32)).enumerate() {
            let expected: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
            let largest = expected.iter().fold(0.0_f32, |top, value| top.max(value.abs()));
            let allowed = match stored {
                StoredType::Q2K => largest / 250.0,
                StoredType::Iq4Xs => largest / 2000.0,
                _ => largest * 1e-6,
            };
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() <= allowed,
                    "{kind}, run {block}: {found}, not {expected}"
                );
            }
        }
    }
    assert_eq!(seen, 12);
}
