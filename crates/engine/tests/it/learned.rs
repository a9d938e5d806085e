//! The learned scorer from its training to its use, and the correlation of scorers with attention.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use inertiakv::policy::Scorer;
use inertiakv::testing::TinyModel;
use inertiakv::{
    CorrelationOptions, Engine, EngineOptions, Error, KvType, LearnedScorer, Method, Schedule, ScorerError, Training,
    TrainingOptions,
};
use tempfile::TempDir;

fn on() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

struct World {
    folder: TempDir,
    engine: Engine,
    tokens: Vec<u32>,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = open(folder.path(), "tiny", &TinyModel::default(), 2);
        let tokens = (0..1200_u32).map(|i| i * i % 241 + i % 7).collect();
        Self { folder, engine, tokens }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn training(&self, options: &TrainingOptions) -> Training {
        Training::new(&self.engine, &self.tokens, options).unwrap()
    }

    /// A scorer that has learned a little, and its file.
    fn scorer(&self) -> (LearnedScorer, PathBuf) {
        let mut training = self.training(&options(2));
        run(&mut training, 2);
        let path = self.path("scorer.safetensors");
        training.save(&path).unwrap();
        (LearnedScorer::load(&path).unwrap(), path)
    }
}

fn open(folder: &Path, name: &str, model: &TinyModel, threads: usize) -> Engine {
    let path = folder.join(format!("{name}.gguf"));
    model.write(&path).unwrap();
    let options = EngineOptions {
        threads: Some(threads),
        ..EngineOptions::default()
    };
    Engine::open(&path, &options).unwrap()
}

fn options(steps: usize) -> TrainingOptions {
    TrainingOptions {
        steps,
        window: 128,
        queries: 4,
        ..TrainingOptions::default()
    }
}

fn run(training: &mut Training, steps: usize) {
    for _ in 0..steps {
        training.step(&mut on).unwrap();
    }
}

#[test]
fn training_lowers_the_loss_and_raises_the_correlation() {
    let world = World::new();
    let steps = 200;
    let mut training = world.training(&TrainingOptions {
        learning_rate: 1e-2,
        ..options(steps)
    });
    let before = training.held_out(&mut on).unwrap();
    run(&mut training, steps);
    assert!(training.is_done());
    let losses = &training.scorer().training().losses;
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    assert!(mean(&losses[steps - 20..]) < 0.8 * mean(&losses[..20]), "{losses:?}");
    let after = training.held_out(&mut on).unwrap();
    assert_eq!(after.spearman.layers.len(), 2);
    let (before, after) = (before.spearman.mean.unwrap(), after.spearman.mean.unwrap());
    assert!(after > before + 0.1, "{before} {after}");
}

#[test]
fn resumed_training_ends_in_the_same_file() {
    let world = World::new();
    for schedule in [Schedule::Cosine, Schedule::Constant] {
        let options = TrainingOptions { schedule, ..options(5) };
        let mut whole = world.training(&options);
        run(&mut whole, 5);
        whole.save(&world.path("whole")).unwrap();

        let path = world.path("parts");
        let mut first = world.training(&options);
        run(&mut first, 2);
        first.save(&path).unwrap();
        drop(first);
        // Another number of threads, too.
        let engine = open(world.folder.path(), "tiny", &TinyModel::default(), 1);
        let mut second = Training::resume(&engine, &world.tokens, &options, &path).unwrap();
        assert_eq!(second.steps_done(), 2);
        run(&mut second, 3);
        assert!(second.is_done());
        second.save(&path).unwrap();
        assert!(std::fs::read(world.path("whole")).unwrap() == std::fs::read(&path).unwrap());
        assert_eq!(LearnedScorer::load(&path).unwrap(), *whole.scorer());
    }
    let left: Vec<_> = std::fs::read_dir(world.folder.path()).unwrap().flatten().collect();
    let partial = left
        .iter()
        .find(|entry| entry.file_name().to_string_lossy().ends_with(".partial"));
    assert!(partial.is_none(), "{partial:?}");
}

#[test]
fn a_step_broken_off_changes_nothing() {
    let world = World::new();
    let (mut training, mut other) = (world.training(&options(3)), world.training(&options(3)));
    run(&mut training, 1);
    let mut asked = 0;
    let broken = training.step(&mut || {
        asked += 1;
        if asked == 3 { ControlFlow::Break(()) } else { on() }
    });
    assert!(matches!(broken, Err(Error::Cancelled)));
    run(&mut training, 1);
    run(&mut other, 2);
    assert_eq!(training.scorer(), other.scorer());
}

#[test]
fn training_is_resumed_only_as_it_began() {
    let world = World::new();
    let (_, path) = world.scorer();
    let resume = |tokens: &[u32], options: &TrainingOptions| {
        let resumed = Training::resume(&world.engine, tokens, options, &path);
        resumed
            .map(|training| training.steps_done())
            .map_err(|error| error.to_string())
    };
    assert_eq!(resume(&world.tokens, &options(2)), Ok(2));
    for (changed, word) in [
        (TrainingOptions { steps: 3, ..options(2) }, "steps"),
        (TrainingOptions { seed: 1, ..options(2) }, "seed"),
        (
            TrainingOptions {
                window: 100,
                ..options(2)
            },
            "window",
        ),
        (
            TrainingOptions {
                queries: 5,
                ..options(2)
            },
            "queries",
        ),
        (
            TrainingOptions {
                learning_rate: 1e-3,
                ..options(2)
            },
            "rate",
        ),
        (
            TrainingOptions {
                schedule: Schedule::Constant,
                ..options(2)
            },
            "schedule",
        ),
    ] {
        let error = resume(&world.tokens, &changed).unwrap_err();
        assert!(error.contains(word) && error.contains("resumed"), "{error}");
    }
    let error = resume(&world.tokens[1..], &options(2)).unwrap_err();
    assert!(error.contains("text"), "{error}");

    // Another model of the same name and shape, and another cache.
    let other = TinyModel {
        seed: 77,
        ..TinyModel::default()
    };
    let engine = open(world.folder.path(), "tiny", &other, 2);
    let error = Training::resume(&engine, &world.tokens, &options(2), &path)
        .map(|_| ())
        .unwrap_err();
    assert!(error.to_string().contains("model"), "{error}");
    let q8 = EngineOptions {
        kv_type: KvType::Q8_0,
        ..EngineOptions::default()
    };
    TinyModel::default().write(world.path("tiny.gguf")).unwrap();
    let engine = Engine::open(&world.path("tiny.gguf"), &q8).unwrap();
    let error = Training::resume(&engine, &world.tokens, &options(2), &path)
        .map(|_| ())
        .unwrap_err();
    assert!(error.to_string().contains("cache type"), "{error}");

    let constant = |steps| TrainingOptions {
        schedule: Schedule::Constant,
        ..options(steps)
    };
    let mut training = world.training(&constant(1));
    run(&mut training, 1);
    training.save(&path).unwrap();
    let longer = Training::resume(&world.engine, &world.tokens, &constant(4), &path).unwrap();
    assert!(!longer.is_done());
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let world = World::new();
    let refused = |tokens: &[u32], options: &TrainingOptions| match Training::new(&world.engine, tokens, options) {
        Err(Error::Scorer(error)) => error,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{options:?} was accepted"),
    };
    for wrong in [
        options(0),
        TrainingOptions {
            queries: 0,
            ..options(1)
        },
        TrainingOptions {
            window: 63,
            ..options(1)
        },
        TrainingOptions {
            window: 5000,
            ..options(1)
        },
        TrainingOptions {
            learning_rate: 0.0,
            ..options(1)
        },
        TrainingOptions {
            learning_rate: f32::NAN,
            ..options(1)
        },
    ] {
        assert!(matches!(refused(&world.tokens, &wrong), ScorerError::Option { .. }));
    }
    // What the message asks for is enough, and not too much.
    for window in [64, 128, 700] {
        let options = TrainingOptions { window, ..options(1) };
        let ScorerError::TextTooShort { needed, .. } = refused(&world.tokens[..60], &options) else {
            panic!("another error");
        };
        assert!(Training::new(&world.engine, &world.tokens[..needed], &options).is_ok());
        refused(&world.tokens[..needed - 1], &options);
    }
    let unknown = [world.tokens.as_slice(), &[100_000]].concat();
    let mut training = Training::new(&world.engine, &unknown, &options(1)).unwrap();
    assert!(training.step(&mut on).is_ok());
    assert!(matches!(training.held_out(&mut on), Err(Error::UnknownToken { .. })));
}

#[test]
fn a_scorer_is_used_where_the_method_asks_for_one() {
    let world = World::new();
    let methods: Vec<Method> = [
        "learned:tokens=40",
        "tova:scorer=learned,tokens=40",
        "snapkv:tokens=40+learned:tokens=20",
    ]
    .map(|method| method.parse().unwrap())
    .to_vec();
    for method in &methods {
        let error = world.engine.session(method).err().expect("refused").to_string();
        assert!(error.contains("learned") && error.contains("train-scorer"), "{error}");
    }
    let (scorer, path) = world.scorer();
    assert_eq!((scorer.model(), scorer.parameters()), ("tiny", 64 * (128 + 64)));
    assert_eq!(scorer.training().losses.len(), 2);
    let loaded = Engine::open(
        &world.path("tiny.gguf"),
        &EngineOptions {
            scorer: Some(path),
            ..EngineOptions::default()
        },
    )
    .unwrap();
    assert_eq!(loaded.scorer(), Some(&scorer));
    let engine = world.engine.clone().with_scorer(scorer).unwrap();
    for method in &methods {
        let answer = |engine: &Engine| {
            let mut session = engine.session(method).unwrap();
            session.prefill(&world.tokens[..200], &mut |_, _| on()).unwrap();
            let mut retained = Vec::new();
            for token in &world.tokens[200..230] {
                session.step(&[*token]).unwrap();
                retained.push(session.policy().unwrap().retained(1, 0));
            }
            (retained, session.logits().unwrap().to_vec())
        };
        let first = answer(&engine);
        assert_eq!(first, answer(&loaded));
        let held = first.0.last().unwrap().len();
        assert!(held <= 70, "{method} evicted nothing: {held}");
    }
}

#[test]
fn a_scorer_of_another_model_or_a_damaged_file_is_refused() {
    let world = World::new();
    let (scorer, path) = world.scorer();
    let model = TinyModel {
        layers: 3,
        ..TinyModel::default()
    };
    let other = open(world.folder.path(), "other", &model, 1);
    let error = other.clone().with_scorer(scorer).err().expect("refused").to_string();
    assert!(
        error.contains("`tiny`") && error.contains("2 layers of 4/2 heads of 32"),
        "{error}"
    );
    let resumed = Training::resume(&other, &world.tokens, &options(2), &path);
    assert!(matches!(resumed, Err(Error::Scorer(ScorerError::OtherShape { .. }))));

    let whole = std::fs::read(&path).unwrap();
    let load = |bytes: &[u8]| {
        let path = world.path("damaged");
        std::fs::write(&path, bytes).unwrap();
        LearnedScorer::load(&path).unwrap_err().to_string()
    };
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize + 8;
    let text = |from: &str, to: &str| {
        let json = String::from_utf8(whole[8..header].to_vec()).unwrap();
        assert!(json.contains(from), "{json}");
        let json = json.replace(from, to);
        [
            &(json.len() as u64).to_le_bytes()[..],
            json.as_bytes(),
            &whole[header..],
        ]
        .concat()
    };
    let mut nan = whole.clone();
    nan[header + 400..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    for (bytes, word) in [
        (Vec::new(), "not a scorer"),
        (whole[..header + 100].to_vec(), "damaged"),
        (whole[..header / 2].to_vec(), "damaged"),
        (std::fs::read(world.path("tiny.gguf")).unwrap(), "not a scorer"),
        (vec![0; 100], "not a scorer"),
        (text("\"inertiakv\":", "\"somebody\":"), "`inertiakv`"),
        (text("kv_heads\\\":2", "kv_heads\\\":4"), "`key`"),
        (text("head_dim\\\":32", "head_dim\\\":18446744073709551615"), "too many"),
        (text("\\\"model\\\"", "\\\"modal\\\""), "model"),
        (nan, "finite"),
    ] {
        let error = load(&bytes);
        assert!(error.contains(word) && error.contains("damaged"), "{word}: {error}");
    }
    let missing = LearnedScorer::load(&world.path("missing")).unwrap_err();
    assert!(matches!(missing, ScorerError::Read { .. }));
    assert!(matches!(
        LearnedScorer::load(world.folder.path()),
        Err(ScorerError::Read { .. })
    ));
    let training = world.training(&options(1));
    let nowhere = training.save(&world.path("no/such/folder"));
    assert!(matches!(nowhere, Err(Error::Scorer(ScorerError::Write { .. }))));
    assert!(training.save(world.folder.path()).is_err());
}

#[test]
fn scorers_are_compared_with_attention() {
    let world = World::new();
    let texts = [world.tokens[..300].to_vec(), world.tokens[500..].to_vec()];
    let options = CorrelationOptions {
        queries: 6,
        ..CorrelationOptions::default()
    };
    let mut calls = Vec::new();
    let correlation = world
        .engine
        .correlate(&texts, &options, &mut |done, all| {
            calls.push((done, all));
            on()
        })
        .unwrap();
    assert_eq!(correlation.queries, 12);
    assert_eq!(calls.last(), Some(&(12, 12)));
    assert!(calls.is_sorted());
    assert_eq!(correlation.scorers.len(), options.scorers.len());
    let of = |name: &str| {
        let found = correlation.scorers.iter().find(|scorer| scorer.scorer == name);
        let found = found.unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(found.spearman.layers.len(), 2);
        (found.spearman.mean.unwrap(), found.jaccard.mean.unwrap())
    };
    // Attention is itself, and entropy is one number per layer.
    assert_eq!(of("attention"), (1.0, 1.0));
    assert!(of("entropy").0 > 0.999);
    let (spearman, jaccard) = of("value-norm");
    assert!(
        (0.5..1.0).contains(&spearman) && (0.3..1.0).contains(&jaccard),
        "{spearman} {jaccard}"
    );
    let (spearman, jaccard) = of("random");
    assert!(spearman.abs() < 0.2 && jaccard < 0.3, "{spearman} {jaccard}");
    for name in ["key-diff", "key-norm", "recency", "expected-attention"] {
        let (spearman, jaccard) = of(name);
        assert!(
            (-1.0..1.0).contains(&spearman) && (0.0..1.0).contains(&jaccard),
            "{name}"
        );
    }
    let again = open(world.folder.path(), "tiny", &TinyModel::default(), 1);
    assert_eq!(
        again.correlate(&texts, &options, &mut |_, _| on()).unwrap(),
        correlation
    );

    let stopped = world.engine.correlate(&texts, &options, &mut |done, _| {
        if done < 3 { on() } else { ControlFlow::Break(()) }
    });
    assert!(matches!(stopped, Err(Error::Cancelled)));
    for scorer in [Scorer::Learned, Scorer::Reconstruction(2048)] {
        let options = CorrelationOptions {
            scorers: vec![scorer],
            ..CorrelationOptions::default()
        };
        let error = world.engine.correlate(&texts, &options, &mut |_, _| on()).unwrap_err();
        assert!(matches!(error, Error::Scorer(_)) && error.to_string().contains(&scorer.to_string()));
    }
}
