//! Compressed prompts on tiny random models: what stays, what is freed, what is shared, what is refused.

use std::ops::ControlFlow;

use inertiakv::{Engine, EngineOptions, Error, KvType, Method, Session};

use crate::models::{self, Family};
use crate::session::{decode, method, prefilled, prompt};

const GO: ControlFlow<()> = ControlFlow::Continue(());

/// One of every way to compress a prompt.
const PREFILL: [&str; 12] = [
    "tova",
    "snapkv",
    "snapkv:safeguard=0.2",
    "keydiff",
    "knorm",
    "expected-attention",
    "adakv-ea",
    "kvzip",
    "kvzip:share=layer",
    "kvzip:share=uniform",
    "streaming-llm:at=prefill",
    "random:at=prefill,seed=3",
];

fn engine(family: Family) -> Engine {
    models::tiny(family, &EngineOptions::default())
}

/// Entries of every head of the layers that may lose some, as the policy has them.
fn rows(session: &Session) -> Vec<usize> {
    let config = session.engine().config();
    let policy = session.policy().expect("decoding has begun");
    let layers = (0..config.layers).filter(|&layer| config.window(layer).is_none());
    let heads = layers.flat_map(|layer| (0..config.kv_heads).map(move |head| (layer, head)));
    heads.map(|(layer, head)| policy.rows(layer, head)).collect()
}

#[test]
fn budgets_are_exact_and_memory_is_freed() {
    for family in Family::ALL {
        let engine = engine(family);
        let tokens = prompt(700);
        let full = prefilled(&engine, "full", &tokens).report();
        for text in PREFILL {
            let session = prefilled(&engine, text, &tokens);
            let report = session.report();
            let rows = rows(&session);
            assert_eq!(rows.iter().sum::<usize>(), 70 * rows.len(), "{text}");
            assert_eq!((report.retained, report.budget), (70, Some(70)), "{text}");
            assert_eq!(report.evictions, 630, "{text}");
            // Layers with a window hold the prompt until the first step.
            let windowed = full.kv_bytes * report.windowed_layers.unwrap_or(0) / engine.config().layers;
            assert!((report.kv_bytes - windowed) * 3 < full.kv_bytes, "{text}: {report:?}");
            assert_eq!(report.kv_bytes_prefill, full.kv_bytes, "{text}");
            assert_eq!(report.kv_bytes_freed, full.kv_bytes - report.kv_bytes, "{text}");
            let uneven =
                text.contains("safeguard") || text.contains("adakv") || text == "kvzip" || text.contains("layer");
            assert_eq!(report.retained_min < report.retained_max, uneven, "{text}: {rows:?}");
        }
    }
}

#[test]
fn the_last_logits_of_a_prompt_do_not_feel_its_compression() {
    let engine = engine(Family::Qwen2);
    let tokens = prompt(600);
    let full = prefilled(&engine, "full", &tokens);
    for text in PREFILL {
        let session = prefilled(&engine, text, &tokens);
        assert_eq!(session.logits().unwrap(), full.logits().unwrap(), "{text}");
    }
}

#[test]
fn one_prefill_serves_every_method() {
    let engine = engine(Family::Llama);
    let tokens = prompt(600);
    let mut texts: Vec<String> = PREFILL.map(str::to_owned).to_vec();
    texts.extend(["snapkv:ratio=0.5+inertia", "kvzip:ratio=0.5+h2o", "inertia"].map(str::to_owned));
    let methods: Vec<Method> = texts.iter().map(|text| method(text)).collect();
    let mut base = engine.session(&Method::full()).unwrap();
    base.remember_for(&methods).unwrap();
    base.prefill(&tokens, &mut |_, _| GO).unwrap();
    for method in &methods {
        let mut fork = base.fork(method).unwrap();
        let mut own = prefilled(&engine, &method.to_string(), &tokens);
        assert_eq!(decode(&mut fork, 6), decode(&mut own, 6), "{method}");
        assert_eq!(fork.report().retained, own.report().retained, "{method}");
    }
    // The base is as it was.
    assert_eq!(
        decode(&mut base.fork(&Method::full()).unwrap(), 4),
        decode(&mut prefilled(&engine, "full", &tokens), 4)
    );
}

#[test]
fn a_compression_that_keeps_everything_changes_no_bit() {
    let engine = engine(Family::Qwen2);
    let tokens = prompt(300);
    let expected = decode(&mut prefilled(&engine, "full", &tokens), 6);
    for text in PREFILL {
        let separator = if text.contains(':') { ',' } else { ':' };
        let mut session = prefilled(&engine, &format!("{text}{separator}tokens=300"), &tokens);
        assert_eq!(decode(&mut session, 6), expected, "{text}");
        assert_eq!(session.report().evictions, 0, "{text}");
    }
}

#[test]
fn threads_change_no_bit() {
    let tokens = prompt(1100);
    let run = |threads: usize, text: &str| {
        let options = EngineOptions {
            threads: Some(threads),
            ..EngineOptions::default()
        };
        let engine = models::tiny(Family::Llama, &options);
        decode(&mut prefilled(&engine, text, &tokens), 4)
    };
    for text in PREFILL {
        assert_eq!(run(1, text), run(3, text), "{text}");
    }
}

#[test]
fn any_compression_goes_with_any_decoding() {
    let engine = engine(Family::Qwen2);
    let tokens = prompt(400);
    for prefill in ["tova", "snapkv", "adakv-ea", "kvzip", "knorm"] {
        for decoding in [
            "inertia",
            "score-free",
            "h2o",
            "single-step",
            "tova",
            "keydiff",
            "snapkv:recent=8",
            "random",
        ] {
            for coupling in ["", "coupling=layer-mean", "coupling=per-layer", "coupling=per-head"] {
                let separator = if decoding.contains(':') { ',' } else { ':' };
                let text = format!("{prefill}:ratio=0.5+{decoding}{separator}tokens=40,{coupling}");
                let Ok(method) = text.trim_end_matches(',').parse::<Method>() else {
                    continue;
                };
                let mut session = prefilled(&engine, &method.to_string(), &tokens);
                for step in 0..6_u32 {
                    session.step(&[step + 1]).unwrap();
                    let rows = rows(&session);
                    let (held, most) = (rows.iter().sum::<usize>(), 40 * rows.len());
                    assert!(held <= most && held + rows.len() > most, "{method}: {held} of {most}");
                }
            }
        }
    }
}

#[test]
fn an_interval_bounds_the_memory_of_any_prompt() {
    let engine = engine(Family::Llama);
    for (text, most) in [
        ("snapkv:tokens=128,interval=256", 128 + 256),
        ("tova:tokens=100,interval=64", 100 + 64),
        ("keydiff:tokens=100,interval=700", 100 + 700),
        ("adakv-ea:tokens=100,interval=128", 100 * 2 + 128),
        ("streaming-llm:at=prefill,tokens=100,interval=32", 100 + 32),
    ] {
        let bytes = |tokens: usize| {
            let report = prefilled(&engine, text, &prompt(tokens)).report();
            assert!(
                report.peak_entries <= most,
                "{text}: {} of {tokens}",
                report.peak_entries
            );
            assert_eq!(report.retained, report.budget.unwrap(), "{text}");
            report.kv_bytes_peak
        };
        assert!(bytes(3000) <= bytes(1500) + 64 * 1024, "{text}");
    }
    // A whole prompt within budget and interval is compressed once, as without one.
    let tokens = prompt(500);
    let mut bounded = prefilled(&engine, "snapkv:ratio=0.5,interval=300", &tokens);
    let mut whole = prefilled(&engine, "snapkv:ratio=0.5", &tokens);
    assert_eq!(decode(&mut bounded, 3), decode(&mut whole, 3));
}

#[test]
fn masked_entries_cost_memory_and_get_no_attention() {
    for kv_type in [KvType::F32, KvType::F16, KvType::Q8_0] {
        let options = EngineOptions {
            kv_type,
            ..EngineOptions::default()
        };
        let engine = models::tiny(Family::Qwen2, &options);
        let tokens = prompt(500);
        let mut masked = prefilled(&engine, "kvzip:masked=true", &tokens);
        let mut freed = prefilled(&engine, "kvzip", &tokens);
        let report = masked.report();
        assert_eq!(
            (report.masked, report.retained, report.evictions, report.kv_bytes_freed),
            (450, 500, 0, 0)
        );
        assert_eq!(report.kv_bytes, prefilled(&engine, "full", &tokens).report().kv_bytes);
        for (masked, freed) in decode(&mut masked, 3).iter().zip(decode(&mut freed, 3)) {
            let difference = masked
                .iter()
                .zip(&freed)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            assert!(difference < 2e-3, "{kv_type}: {difference}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let engine = engine(Family::Llama);
    let mut base = engine.session(&Method::full()).unwrap();
    let bounded = method("snapkv:interval=64");
    base.remember_for([&bounded, &method("tova")]).unwrap();
    base.prefill(&prompt(200), &mut |_, _| GO).unwrap();
    assert!(matches!(base.remember_for([&method("tova")]), Err(Error::PrefillBegun)));
    assert!(matches!(base.fork(&bounded), Err(Error::OwnPrefill { .. })));
    let mut own = base.fork_or_prefill(&bounded, &prompt(200), &mut |_, _| GO).unwrap();
    assert_eq!(
        decode(&mut own, 2),
        decode(&mut prefilled(&engine, "snapkv:interval=64", &prompt(200)), 2)
    );
    for text in ["snapkv", "kvzip", "adakv-ea"] {
        assert!(
            matches!(base.fork(&method(text)), Err(Error::NotRemembered { .. })),
            "{text}"
        );
    }
    for text in ["tova", "keydiff", "random:at=prefill", "inertia"] {
        assert!(base.fork(&method(text)).is_ok(), "{text}");
    }

    let mut session = prefilled(&engine, "tova", &prompt(200));
    let again = session.prefill(&prompt(5), &mut |_, _| GO);
    assert!(matches!(again, Err(Error::PromptInPieces { .. })));
    assert!(session.fork(&method("tova")).is_ok());
    assert!(matches!(session.fork(&Method::full()), Err(Error::ForkCompressed)));
    session.step(&[1]).unwrap();
    assert!(matches!(session.fork(&Method::full()), Err(Error::ForkAfterStep)));

    let wide = method("snapkv:window=600");
    assert!(matches!(
        engine.session(&wide),
        Err(Error::ScoringWindow { asked: 600, .. })
    ));
    let limit = engine.config().context_length;
    let mut session = engine.session(&method("kvzip")).unwrap();
    let refused = session.prefill(&prompt(limit - 10), &mut |_, _| GO);
    assert!(matches!(refused, Err(Error::NoRoomToRepeat { .. })), "{refused:?}");
    // Nothing has run, so the session can still be used; and what keeps everything repeats nothing.
    session.prefill(&prompt(100), &mut |_, _| GO).unwrap();
    let all = method(&format!("kvzip:tokens={limit}"));
    let mut session = engine.session(&all).unwrap();
    session.prefill(&prompt(limit - 10), &mut |_, _| GO).unwrap();
    assert_eq!(session.report().peak_entries, limit - 10);
}

#[test]
fn a_short_prompt_survives_every_method() {
    let engine = engine(Family::Llama);
    for text in PREFILL {
        for length in [1, 2, 5, 17] {
            let mut session = prefilled(&engine, text, &prompt(length));
            session.step(&[1]).unwrap();
            assert!(
                session.logits().unwrap().iter().all(|logit| logit.is_finite()),
                "{text}, {length}"
            );
        }
    }
}

#[test]
fn a_forked_prompt_is_cancelled_like_any_other() {
    let engine = engine(Family::Llama);
    let mut session = engine.session(&method("snapkv")).unwrap();
    let cancelled = session.prefill(&prompt(1200), &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    assert!(matches!(session.step(&[1]), Err(Error::Broken)));
}

#[test]
fn the_budget_of_a_prompt_does_not_grow_with_what_follows() {
    let engine = engine(Family::Llama);
    for text in ["snapkv:ratio=0.5", "knorm:seen_ratio=0.5"] {
        let mut session = prefilled(&engine, text, &prompt(200));
        session.follow_up(&prompt(50), &mut |_, _| GO).unwrap();
        decode(&mut session, 10);
        let report = session.report();
        assert_eq!(
            (report.budget, report.compression_ratio),
            (Some(100), Some(0.5)),
            "{text}"
        );
        assert_eq!((report.retained, report.prompt_tokens), (160, 250), "{text}");
    }
}
