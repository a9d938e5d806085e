//! Several sessions in one pass, and the benchmark that uses them, on tiny random models.

use std::ops::ControlFlow;

use inertiakv::{BenchOptions, Engine, EngineOptions, Error, Method, Session};

use crate::models::{self, Family};

const METHODS: [&str; 4] = ["full", "inertia:ratio=0.5", "streaming-llm:tokens=20", "score-free"];

fn method(text: &str) -> Method {
    text.parse().expect("a valid method")
}

/// Sessions of different lengths under different methods.
fn sessions(engine: &Engine) -> Vec<Session> {
    METHODS
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let mut session = engine.session(&method(text)).expect("a session");
            let prompt: Vec<u32> = (0..40 + 13 * index as u32).map(|at| (at * 31 + 7) % 250).collect();
            session
                .prefill(&prompt, &mut |_, _| ControlFlow::Continue(()))
                .expect("prefill");
            session
        })
        .collect()
}

fn options(contexts: &[usize]) -> BenchOptions {
    BenchOptions {
        contexts: contexts.to_vec(),
        methods: METHODS.iter().map(|text| method(text)).collect(),
        tokens: 3,
        rounds: 2,
        sequences: 2,
    }
}

#[test]
fn sessions_that_step_together_get_the_bits_they_get_alone() {
    for family in Family::ALL {
        let engine = models::tiny(family, &EngineOptions::default());
        let mut alone = sessions(&engine);
        let mut together = sessions(&engine);
        // The second step asks a question of several tokens in one of them.
        let steps: [[&[u32]; 4]; 3] = [
            [&[1], &[2], &[3], &[4]],
            [&[5], &[6, 7, 8, 9, 10], &[11], &[12]],
            [&[13], &[14], &[15], &[16]],
        ];
        for tokens in steps {
            let mut batch: Vec<&mut Session> = together.iter_mut().collect();
            let reports = Session::step_together(&mut batch, &tokens).expect("a step");
            for (((alone, together), tokens), report) in alone.iter_mut().zip(&together).zip(tokens).zip(reports) {
                let expected = alone.step(tokens).expect("a step");
                assert_eq!(
                    (
                        expected.step,
                        expected.tokens,
                        expected.evicted,
                        expected.retained,
                        expected.kv_bytes
                    ),
                    (
                        report.step,
                        report.tokens,
                        report.evicted,
                        report.retained,
                        report.kv_bytes
                    )
                );
                assert!(alone.logits().expect("logits") == together.logits().expect("logits"));
                assert_eq!(alone.position(), together.position());
            }
        }
    }
}

#[test]
fn a_refused_joint_step_changes_nothing() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let other = models::tiny(Family::Llama, &EngineOptions::default());
    let mut sessions = sessions(&engine);
    let mut stranger = other.session(&Method::full()).expect("a session");
    let [first, second, ..] = sessions.as_mut_slice() else {
        panic!()
    };
    let logits = first.logits().expect("logits").to_vec();

    let refused = Session::step_together(&mut [first, second], &[&[1]]);
    assert!(matches!(refused, Err(Error::BatchLength { sessions: 2, steps: 1 })));
    let refused = Session::step_together(&mut [first, &mut stranger], &[&[1], &[1]]);
    assert!(matches!(refused, Err(Error::BatchEngine)));
    let refused = Session::step_together(&mut [first, second], &[&[1], &[u32::MAX]]);
    assert!(matches!(refused, Err(Error::UnknownToken { .. })));
    assert!(Session::step_together(&mut [], &[]).expect("nothing to do").is_empty());

    assert_eq!(first.position(), 40);
    assert!(first.logits().expect("logits") == logits);
    first.step(&[1]).expect("still of use");
}

#[test]
fn every_row_of_a_benchmark_is_measured() {
    let engine = models::tiny(Family::Qwen2, &EngineOptions::default());
    let mut parts = Vec::new();
    // Two turns.
    let options = BenchOptions {
        tokens: 40,
        ..options(&[60, 30])
    };
    let rows = engine
        .bench(&options, &mut |now| {
            parts.push((now.context, now.done, now.total));
            ControlFlow::Continue(())
        })
        .expect("a benchmark");
    assert_eq!(rows.len(), 8);
    assert_eq!(parts.first(), Some(&(60, 1, 12)));
    assert_eq!(parts.last(), Some(&(30, 12, 12)));
    for (row, text) in rows.iter().zip(METHODS.iter().cycle()) {
        assert_eq!((row.method.as_str(), row.sequences), (*text, 2));
        let share = row.share;
        let sum = share.matmul + share.attention + share.scoring + share.eviction + share.other;
        assert!((sum - 1.0).abs() < 1e-6, "{share:?}");
        for (speed, [least, most]) in [
            (row.prefill_tokens_per_second, row.prefill_spread),
            (row.decode_tokens_per_second, row.decode_spread),
        ] {
            assert!(0.0 < least && least <= speed && speed <= most);
        }
        assert!(row.first_step_milliseconds > 0.0 && row.step_milliseconds > 0.0);
    }
    // 59 steps after the prefill: the first, two to warm up, eight before each turn, forty that count.
    let retained: Vec<usize> = rows.iter().map(|row| row.retained).collect();
    assert_eq!(retained, [119, 30, 20, 6, 89, 15, 20, 3]);
}

#[test]
fn what_cannot_be_measured_is_refused_at_once() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let bench = |options: &BenchOptions| engine.bench(options, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(bench(&options(&[0])), Err(Error::NoTokens)));
    assert!(matches!(
        bench(&options(&[20, engine.context() - 5])),
        Err(Error::BenchContext { .. })
    ));
    let nothing = BenchOptions {
        rounds: 0,
        ..options(&[20])
    };
    assert!(matches!(bench(&nothing), Err(Error::NothingToMeasure)));
    let nobody = BenchOptions {
        methods: Vec::new(),
        ..options(&[20])
    };
    assert!(matches!(bench(&nobody), Err(Error::NothingToMeasure)));
    let apart = BenchOptions {
        methods: vec!["snapkv:interval=64".parse().expect("a method")],
        ..options(&[20])
    };
    assert!(matches!(bench(&apart), Err(Error::OwnPrefill { .. })));
    let stopped = engine.bench(&options(&[20]), &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(Error::Cancelled)));
}

#[test]
fn the_limits_of_the_machine_bound_the_model() {
    let engine = models::tiny(Family::Llama, &EngineOptions::default());
    let limits = engine.limits().expect("limits");
    let step = limits.read_bytes_per_second / limits.decode_tokens_per_second;
    assert!(step > 0.0 && step <= engine.info().weight_bytes as f64);
    assert!(limits.prefill_tokens_per_second > 0.0);
}
