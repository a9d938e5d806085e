//! Sessions on tiny random models: exactness, forks, eviction, errors.

use std::ops::ControlFlow;

use inertiakv::{Engine, EngineOptions, Error, FinishReason, GenerateOptions, KvType, Method, Sampling, Session};

use crate::models::{self, Family};

const GO: ControlFlow<()> = ControlFlow::Continue(());

pub(crate) fn method(text: &str) -> Method {
    text.parse().expect("a valid method")
}

/// A prompt of `length` tokens without visible pattern.
pub(crate) fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32)
        .map(|index| (index * 7919 + index * index * 13) % 250)
        .collect()
}

pub(crate) fn prefilled(engine: &Engine, text: &str, tokens: &[u32]) -> Session {
    let mut session = engine.session(&method(text)).expect("a session");
    session.prefill(tokens, &mut |_, _| GO).expect("prefill");
    session
}

/// Logits after every one of `steps` greedy steps.
pub(crate) fn decode(session: &mut Session, steps: usize) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for _ in 0..steps {
        let logits = session.logits().expect("logits").to_vec();
        let best = (0..logits.len())
            .max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
            .expect("not empty");
        session.step(&[best as u32]).expect("step");
        all.push(session.logits().expect("logits").to_vec());
    }
    all
}

#[test]
fn a_method_that_evicts_nothing_gives_the_same_bits_as_full() {
    for family in Family::ALL {
        let engine = models::tiny(family, &EngineOptions::default());
        let tokens = prompt(100);
        let expected = decode(&mut prefilled(&engine, "full", &tokens), 10);
        for name in [
            "inertia:tokens=500",
            "inertia-lazy:tokens=500",
            "score-free:tokens=500",
            "h2o:tokens=500",
            "inertia:tokens=500,scorer=key-diff",
            "inertia:tokens=500,coupling=per-head",
            "streaming-llm:tokens=500",
        ] {
            assert!(
                expected == decode(&mut prefilled(&engine, name, &tokens), 10),
                "{name} differs from full"
            );
        }
    }
}

#[test]
fn threads_and_earlier_requests_change_no_bit() {
    let tokens = prompt(700);
    for family in Family::ALL {
        let run = |threads: usize, kv_type: KvType, warm: bool| {
            let options = EngineOptions {
                threads: Some(threads),
                kv_type,
                ..EngineOptions::default()
            };
            let engine = models::tiny(family, &options);
            if warm {
                decode(&mut prefilled(&engine, "h2o:ratio=0.5", &prompt(333)), 5);
            }
            decode(&mut prefilled(&engine, "inertia:ratio=0.9", &tokens), 12)
        };
        for kv_type in [KvType::F16, KvType::F32, KvType::Q8_0] {
            let one = run(1, kv_type, false);
            assert!(one == run(2, kv_type, false), "{kv_type}: two threads");
            assert!(
                one == run(5, kv_type, true),
                "{kv_type}: five threads, after another request"
            );
        }
    }
}

#[test]
fn prefill_in_parts_is_the_same_prompt() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let tokens = prompt(900);
    let whole = prefilled(&engine, "full", &tokens);
    for first in [100, 500, 512, 890] {
        let mut parts = prefilled(&engine, "full", &tokens[..first]);
        parts.prefill(&tokens[first..], &mut |_, _| GO).expect("the rest");
        assert_eq!(parts.report().prompt_tokens, 900);
        // Other chunks sum in another order; the same chunks give the same bits.
        let pairs = whole
            .logits()
            .expect("logits")
            .iter()
            .zip(parts.logits().expect("logits"));
        let largest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(largest < 0.05 && (first != 512 || largest == 0.0), "{first}: {largest}");
    }
}

#[test]
fn forks_run_like_sessions_of_their_own() {
    let engine = models::tiny(Family::Qwen2, &EngineOptions::default());
    let tokens = prompt(400);
    let base = prefilled(&engine, "full", &tokens);
    for name in [
        "full",
        "inertia:ratio=0.75",
        "random:ratio=0.9",
        "score-free:ratio=0.9",
        "h2o:ratio=0.9,coupling=per-layer",
    ] {
        let alone = decode(&mut prefilled(&engine, name, &tokens), 8);
        let mut fork = base.fork(&method(name)).expect("a fork");
        assert!(alone == decode(&mut fork, 8), "{name} from a fork");
        let mut second = fork.fork(&method(name)).expect("a fork in mid-decode");
        assert!(
            decode(&mut second, 3) == decode(&mut fork, 3),
            "{name} forked in mid-decode"
        );
    }
    drop(base);
    assert_eq!(engine.kv_pool().bytes_in_use(), 0, "every block came back");
}

#[test]
fn budgets_are_exact_in_every_layer_and_head_for_every_method() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let tokens = prompt(310);
    let base = prefilled(&engine, "full", &tokens);
    let names = [
        "inertia",
        "inertia-lazy",
        "score-free",
        "single-step",
        "h2o",
        "recency",
        "random:seed=3",
        "streaming-llm",
        "inertia-aux",
        "inertia:scorer=value-norm",
        "inertia:scorer=entropy",
        "inertia:scorer=key-diff",
        "inertia:scorer=key-norm",
        "inertia:coupling=layer-mean",
        "inertia:coupling=per-layer",
        "inertia:coupling=per-head",
        "inertia:pool=max,kernel=max7,window=8",
        "inertia:layers=1-1",
        "inertia:sinks=4,recent=8",
    ];
    for name in names {
        let mut session = base.fork(&method(name)).expect("a fork");
        // A question of 20 tokens is the first step; then single tokens.
        let report = session.step(&prompt(20)).expect("the question");
        assert_eq!((report.evicted, report.retained), (310 + 20 - 31, 31), "{name}");
        decode(&mut session, 5);
        let report = session.report();
        assert_eq!(
            (report.budget, report.retained, report.peak_entries),
            (Some(31), 31, 330),
            "{name}"
        );
        assert_eq!((report.steps, report.evictions), (6, 310 + 20 - 31 + 5), "{name}");
        assert_eq!(session.position(), 335, "positions are not rows");
        let state = session.policy().expect("a policy");
        for layer in 0..engine.config().layers {
            for head in 0..engine.config().kv_heads {
                assert_eq!(state.retained(layer, head).len(), 31, "{name}");
            }
        }
    }
}

#[test]
fn adaptive_shares_keep_each_layer_at_its_total() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let mut session = prefilled(&engine, "inertia:coupling=per-head,safeguard=0.2", &prompt(400));
    decode(&mut session, 6);
    assert_eq!((session.report().retained, session.report().budget), (40, Some(40)));
    let state = session.policy().expect("a policy");
    let heads = engine.config().kv_heads;
    for layer in 0..engine.config().layers {
        let rows: Vec<usize> = (0..heads).map(|head| state.rows(layer, head)).collect();
        assert_eq!(rows.iter().sum::<usize>(), 40 * heads);
        assert!(rows.iter().all(|&rows| rows >= 8), "{rows:?}");
    }
}

#[test]
fn a_long_question_is_one_step() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let mut session = prefilled(&engine, "inertia:ratio=0.5", &prompt(200));
    let report = session.step(&prompt(1100)).expect("a question of three chunks");
    assert_eq!((report.step, report.tokens, report.retained), (1, 1100, 100));
    assert_eq!(session.report().peak_entries, 1300);
}

#[test]
fn a_follow_up_turn_adds_to_the_budget() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let mut session = prefilled(&engine, "inertia:ratio=0.9", &prompt(400));
    session.follow_up(&prompt(60), &mut |_, _| GO).expect("a turn");
    assert_eq!(session.report().budget, Some(46));
    assert_eq!(session.retained_entries(), 46);
}

#[test]
fn memory_comes_back_after_the_first_eviction() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let mut session = prefilled(&engine, "inertia:ratio=0.9", &prompt(2000));
    let after_prefill = engine.kv_pool().bytes_in_use();
    assert_eq!(session.report().kv_bytes_prefill, after_prefill);
    decode(&mut session, 1);
    let after_eviction = engine.kv_pool().bytes_in_use();
    assert_eq!(session.report().kv_bytes, after_eviction);
    assert!(
        after_eviction * 100 <= after_prefill * 12,
        "{after_eviction} of {after_prefill} bytes are still held"
    );
}

#[test]
fn generation_stops_where_it_should() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let base = prefilled(&engine, "inertia:ratio=0.5", &prompt(100));
    let run = |options: &GenerateOptions| {
        let mut session = base.fork(base.method()).expect("a fork");
        let mut pieces = String::new();
        let generation = session
            .generate(options, &mut |piece| {
                pieces.push_str(piece);
                GO
            })
            .expect("generation");
        assert_eq!(pieces, generation.text, "the stream is the text");
        generation
    };
    let options = GenerateOptions {
        max_tokens: 20,
        ignore_end: true,
        ..GenerateOptions::default()
    };
    let greedy = run(&options);
    assert_eq!((greedy.tokens.len(), greedy.finish_reason), (20, FinishReason::Length));
    assert_eq!(greedy, run(&options), "greedy repeats itself");
    let changes = greedy.tokens.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(
        changes >= 10,
        "the tests below need text that moves: {:?}",
        greedy.tokens
    );

    let stop: String = greedy.text.chars().skip(3).take(2).collect();
    let stopped = run(&GenerateOptions {
        stop: vec![stop.clone()],
        ..options.clone()
    });
    assert_eq!(stopped.finish_reason, FinishReason::Stop);
    assert!(greedy.text.starts_with(&stopped.text) && !stopped.text.contains(&stop));

    let hot = |seed| GenerateOptions {
        sampling: Sampling {
            temperature: 2.0,
            seed,
            ..Sampling::default()
        },
        ..options.clone()
    };
    assert_eq!(run(&hot(1)), run(&hot(1)));
    assert_ne!(run(&hot(1)).tokens, run(&hot(2)).tokens);

    let mut session = base.fork(base.method()).expect("a fork");
    let cancelled = session
        .generate(&options, &mut |_| ControlFlow::Break(()))
        .expect("generation");
    assert_eq!(cancelled.finish_reason, FinishReason::Cancelled);
    let rest = session
        .generate(&options, &mut |_| GO)
        .expect("a cancelled generation can go on");
    assert_eq!([cancelled.tokens, rest.tokens].concat()[..20], greedy.tokens);
}

#[test]
fn a_refused_step_loses_nothing() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let one = GenerateOptions {
        max_tokens: 1,
        ignore_end: true,
        ..GenerateOptions::default()
    };
    let run = |refusals: bool| {
        let mut session = prefilled(&engine, "inertia:ratio=0.5", &prompt(100));
        session
            .generate(&one, &mut |_| GO)
            .expect("one token, which has not run yet");
        if refusals {
            assert!(matches!(
                session.prefill(&[1], &mut |_, _| GO),
                Err(Error::PrefillAfterStep)
            ));
            assert!(matches!(session.step(&[1_000_000]), Err(Error::UnknownToken { .. })));
            let refused = session.follow_up(&[1_000_000], &mut |_, _| GO);
            assert!(matches!(refused, Err(Error::UnknownToken { .. })));
        }
        session.follow_up(&prompt(10), &mut |_, _| GO).expect("a turn");
        (
            session.logits().expect("logits").to_vec(),
            session.report().budget,
            session.position(),
        )
    };
    let expected = run(false);
    assert_eq!((expected.1, expected.2), (Some(55), 111));
    assert!(expected == run(true));
}

#[test]
fn generation_ends_with_the_context() {
    let options = EngineOptions {
        context: Some(110),
        ..EngineOptions::default()
    };
    let engine = models::tiny(Family::Llama, &options);
    let mut session = prefilled(&engine, "full", &prompt(100));
    let options = GenerateOptions {
        max_tokens: 50,
        ignore_end: true,
        ..GenerateOptions::default()
    };
    let generation = session.generate(&options, &mut |_| GO).expect("generation");
    // Ten tokens run; the eleventh is drawn from the last of them.
    assert_eq!(
        (generation.tokens.len(), generation.finish_reason),
        (11, FinishReason::Context)
    );
}

#[test]
fn wrong_use_is_an_error_that_says_what_to_do() {
    let engine = models::tiny(
        Family::Llama,
        &EngineOptions {
            context: Some(500),
            ..EngineOptions::default()
        },
    );
    let mut session = engine.session(&method("inertia")).expect("a session");
    assert!(matches!(session.step(&[1]), Err(Error::NoPrompt)));
    let window = engine.session(&method("inertia:window=600"));
    assert!(matches!(window, Err(Error::ScoringWindow { .. })));
    assert!(matches!(session.prefill(&[], &mut |_, _| GO), Err(Error::NoTokens)));
    assert!(matches!(session.logits(), Err(Error::NoPrompt)));
    assert!(matches!(
        session.prefill(&[1_000_000], &mut |_, _| GO),
        Err(Error::UnknownToken { .. })
    ));
    let too_long = session.prefill(&prompt(501), &mut |_, _| GO);
    assert!(matches!(
        too_long,
        Err(Error::ContextFull {
            needed: 501,
            context: 500
        })
    ));
    session
        .prefill(&prompt(50), &mut |_, _| GO)
        .expect("refused calls change nothing");
    session.step(&[1]).expect("step");
    assert!(matches!(
        session.prefill(&[1], &mut |_, _| GO),
        Err(Error::PrefillAfterStep)
    ));
    assert!(matches!(session.fork(&method("h2o")), Err(Error::ForkAfterStep)));
    assert!(matches!(
        engine.session(&method("inertia:layers=0-9")),
        Err(Error::Policy(_))
    ));
    let asked = Engine::open(
        &models::tiny_file(Family::Llama),
        &EngineOptions {
            context: Some(1 << 30),
            ..EngineOptions::default()
        },
    );
    assert!(matches!(asked, Err(Error::ContextOption { .. })));
}

#[test]
fn a_cancelled_prefill_leaves_a_session_that_says_so() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let mut session = engine.session(&method("full")).expect("a session");
    let outcome = session.prefill(&prompt(1500), &mut |done, total| {
        assert_eq!(total, 1500);
        if done > 600 { ControlFlow::Break(()) } else { GO }
    });
    assert!(matches!(outcome, Err(Error::Cancelled)));
    assert_eq!(session.position(), 1024);
    assert!(matches!(session.step(&[1]), Err(Error::Broken)));
    drop(session);
    assert_eq!(engine.kv_pool().bytes_in_use(), 0);
}

#[test]
fn nothing_is_generated_after_a_cancelled_step() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let options = GenerateOptions {
        max_tokens: 3,
        ..GenerateOptions::default()
    };
    // Of one chunk, and of several: what came before is there in the one, what was cancelled in the other.
    for tokens in [5, 1500] {
        let mut session = prefilled(&engine, "inertia", &prompt(100));
        let outcome = session.step_watched(&prompt(tokens), &mut |_, _| ControlFlow::Break(()));
        assert!(matches!(outcome, Err(Error::Cancelled)));
        assert!(matches!(session.logits(), Err(Error::Broken)));
        let outcome = session.generate(&options, &mut |text| panic!("`{text}` comes of nothing"));
        assert!(matches!(outcome, Err(Error::Broken)));
    }
}

#[test]
fn a_bound_on_kv_memory_is_kept() {
    let options = EngineOptions {
        kv_memory: Some(1 << 20),
        ..EngineOptions::default()
    };
    let engine = models::tiny(Family::Llama, &options);
    let mut session = engine.session(&method("full")).expect("a session");
    let outcome = session.prefill(&prompt(3000), &mut |_, _| GO);
    assert!(matches!(outcome, Err(Error::Cache(_))), "{outcome:?}");
    assert!(engine.kv_pool().bytes_peak() <= 1 << 20);
    assert!(matches!(session.step(&[1]), Err(Error::Broken)));
}

#[test]
fn a_weight_that_is_not_a_number_is_found() {
    let engine = models::broken();
    let mut session = engine.session(&method("full")).expect("a session");
    let outcome = session.prefill(&prompt(10), &mut |_, _| GO);
    assert!(
        matches!(outcome, Err(Error::NotFinite { ref place }) if place == "layer 1"),
        "{outcome:?}"
    );
}

/// Runs [`resident_memory_of_a_long_prompt`] in a process of its own, where nothing else allocates.
#[test]
#[cfg(target_os = "linux")]
fn resident_memory_falls_after_the_first_eviction() {
    let itself = std::env::current_exe().expect("the test binary");
    let output = std::process::Command::new(itself)
        .args([
            "--exact",
            "session::resident_memory_of_a_long_prompt",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .expect("the test binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "runs alone, in a process started by resident_memory_falls_after_the_first_eviction"]
fn resident_memory_of_a_long_prompt() {
    let model = inertiakv::testing::TinyModel {
        kv_heads: 4,
        head_dim: 128,
        context: 8192,
        ..Default::default()
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("wide.gguf");
    model.write(&path).expect("the folder can be written");
    let engine = Engine::open(
        &path,
        &EngineOptions {
            kv_type: KvType::F32,
            ..Default::default()
        },
    )
    .expect("opens");
    let mut session = prefilled(&engine, "inertia:ratio=0.9", &prompt(6000));
    let (before, held) = (resident_bytes(), session.report().kv_bytes);
    decode(&mut session, 1);
    let (after, left) = (resident_bytes(), session.report().kv_bytes);
    assert!(held > 40 << 20, "the cache is large enough to show: {held}");
    assert!(left * 100 <= held * 12, "{left} of {held} bytes are still held");
    // What the allocator says it freed is what the system got back, give or take what else the step allocates.
    let fallen = before.saturating_sub(after);
    assert!(
        fallen * 10 >= (held - left) * 9,
        "resident memory fell by {fallen} of {} freed bytes",
        held - left
    );
}

#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    pages
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok())
        .expect("a number of pages")
        * 4096
}

#[test]
fn a_prefix_goes_on_as_a_prefill_from_the_start_would() {
    let engine = models::tiny(Family::ALL[0], &EngineOptions::default());
    let (document, other) = (prompt(1100), prompt(1400));
    let of = |question: &[u32]| [&document[..1024], question].concat();
    let known = prefilled(&engine, "full", &of(&document[1024..]));
    for name in ["full", "inertia:ratio=0.8"] {
        let whole = of(&other[..80]);
        let mut cold = prefilled(&engine, name, &whole);
        let mut warm = known.fork_prefix(&method(name), &whole[..1024]).expect("a prefix");
        assert!(matches!(warm.logits(), Err(Error::NoPrompt)));
        let unknown = known.fork_prefix(&method(name), &[u32::MAX]);
        assert!(matches!(unknown, Err(Error::UnknownToken { .. })));
        warm.prefill(&whole[1024..], &mut |_, _| GO).expect("prefill");
        assert!(decode(&mut cold, 12) == decode(&mut warm, 12), "{name}");
        let report = warm.report();
        assert_eq!(cold.report().prompt_tokens, report.prompt_tokens);
        assert_eq!(cold.retained_entries(), warm.retained_entries());
        let ran = report.prefill_tokens_per_second * report.prefill_seconds;
        assert!(
            (ran - 80.0).abs() < 1e-6,
            "{ran}: its speed is that of the tokens it ran"
        );
    }
    // What was forked is as it was.
    let again = known.fork(&method("full")).expect("a fork");
    assert_eq!(again.logits().expect("logits"), known.logits().expect("logits"));

    let full = method("full");
    let refused = |session: &Session, method: &Method, tokens: usize| {
        session
            .fork_prefix(method, &document[..tokens])
            .err()
            .map(|error| error.to_string())
    };
    assert!(refused(&known, &full, 0).is_some());
    assert!(
        known.fork_prefix(&full, &prompt(1101)).is_err(),
        "longer than what has run"
    );
    assert!(
        refused(&known, &method("snapkv"), 512).is_some(),
        "it must see the whole prompt"
    );
    let mut stepped = prefilled(&engine, "inertia", &document);
    stepped.step(&[1]).expect("step");
    assert!(refused(&stepped, &full, 512).is_some(), "entries are gone");
}

#[test]
fn an_adaptive_run_says_what_it_came_to() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let mut session = prefilled(&engine, "inertia-adaptive:ratio=0.5", &prompt(200));
    decode(&mut session, 5);
    assert_eq!(session.report().alpha, None);
    decode(&mut session, 10);
    let alpha = session.report().alpha.expect("ten scorings are over");
    assert!([0.0, 0.3, 0.6, 0.8, 0.9, 0.95].contains(&alpha), "{alpha}");
    assert_eq!(prefilled(&engine, "inertia", &prompt(200)).report().alpha, None);
}
