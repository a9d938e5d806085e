//! Every kind of study on a tiny random model.

use std::ops::ControlFlow;
use std::path::Path;

use inertiakv::Engine;
use inertiakv_eval::experiment::{Cell, Data, Experiment, Findings, Lab, Source};
use inertiakv_eval::figure::Kind;

use crate::trace::engine;

const HEAD: &str = "title = \"T\"\nshows = \"s\"\nneeds = \"n\"\n[study]\n";
const RULER: &str = "{ name = \"RULER\", from = { source = \"ruler\", lengths = [1500], tasks = [\"niah_single_1\", \"vt\"] }, samples = 2 }";

fn run(engine: &Engine, folder: &Path, study: &str) -> Findings {
    let experiment = Experiment::parse(&format!("{HEAD}{study}")).unwrap();
    experiment
        .run(&mut Lab {
            engine,
            data: Data::default(),
            folder: folder.join("results"),
            samples: None,
            lengths: Vec::new(),
            tasks: Vec::new(),
            progress: &mut |_, _, _| ControlFlow::Continue(()),
        })
        .unwrap()
}

#[test]
fn a_table_of_scores_agrees_with_itself() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let study = format!(
        r#"kind = "quality"
corner = "Benchmark"
benchmarks = [ {RULER}, {{ name = "LB", from = {{ source = "longbench", tasks = ["qasper"] }} }} ]
columns = [
    {{ label = "Full", method = "full" }},
    {{ label = "A", method = "inertia" }},
    {{ label = "B", method = "inertia", with = "alpha=0.5" }},
    {{ label = "A-B", method = "inertia", minus = "inertia:alpha=0.5" }},
    {{ label = "CI", method = "inertia", minus = "inertia:alpha=0.5", show = "bounds" }},
    {{ label = "Kept", method = "inertia", show = "retained" }},
]
rows = [
    {{ label = "Avg", each_task = true, with = "ratio=0.5" }},
    {{ label = "LB", benchmark = "LB" }},
]
[[study.plots]]
kind = "lines"
name = "curves"
axis = "x"
x = [0, 1, 2]
[[paper]]
model = "P"
row = "Avg"
values = [1, 2, 3, 4, "–", 5]
"#
    );
    let findings = run(&engine, folder.path(), &study);
    let table = &findings.tables[0];
    let labels: Vec<&str> = table.rows.iter().map(|row| row.label.as_str()).collect();
    assert_eq!(labels, ["niah_single_1", "vt", "Avg", "LB", "Avg"]);
    let value = |row: usize, column: usize| table.rows[row].cells[column].value();
    for column in [0, 1, 2, 3] {
        let mean = f64::midpoint(value(0, column).unwrap(), value(1, column).unwrap());
        assert!((value(2, column).unwrap() - mean).abs() < 1e-9);
    }
    let difference = value(2, 1).unwrap() - value(2, 2).unwrap();
    assert!((value(2, 3).unwrap() - difference).abs() < 1e-9);
    assert!(
        value(2, 5).unwrap() > 400.0,
        "half of a prompt stays: {:?}",
        value(2, 5)
    );
    assert!(table.rows[3].cells.iter().all(|cell| *cell == Cell::Nothing));
    assert!(
        table.notes.iter().any(|note| note.contains("--data longbench=")),
        "{:?}",
        table.notes
    );
    assert_eq!(
        (table.rows[4].source, table.rows[4].model.as_str()),
        (Source::Paper, "P")
    );
    // What is there is not run again.
    let path = folder.path().join("results/results.jsonl");
    let before = std::fs::read_to_string(&path).unwrap();
    assert_eq!(run(&engine, folder.path(), &study), findings);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
}

#[test]
fn rankings_are_measured_over_examples() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let run = |study: String| run(&engine, folder.path(), &study);
    let traces = run(format!(
        "kind = \"traces\"\nbenchmarks = [ {RULER} ]\nmethods = [[\"none\", \"single-step\"], [\"a\", \"inertia\"]]\n"
    ));
    let rows = &traces.tables[0].rows;
    assert_eq!(
        rows[0].cells[2].value(),
        Some(1.0),
        "without smoothing both rankings are one"
    );
    assert_eq!(rows.len(), 2);
    assert!(traces.figures.iter().all(|figure| matches!(figure.kind, Kind::Heat(_))));

    let one = RULER.replace("samples = 2", "samples = 1");
    let retention = run(format!(
        "kind = \"retention\"\nsteps = 5\nbenchmark = {one}\nmethods = [[\"A\", \"inertia\"], [\"E\", \"inertia:scorer=entropy\"]]\n"
    ));
    assert_eq!(retention.figures.len(), 4);
    // Entropy scales a layer as a whole, which the last layer alone cannot see.
    assert_eq!(retention.tables[0].rows[0].cells[0].value(), Some(1.0));

    let anatomy = run(format!(
        "kind = \"anatomy\"\nbenchmarks = [ {RULER} ]\nrules = [\"inertia\", \"inertia\"]\n"
    ));
    let cells: Vec<_> = anatomy.tables[0].rows[0].cells.iter().map(Cell::value).collect();
    assert_eq!(cells, [Some(4.0), Some(100.0), Some(0.0), Some(0.0)]);

    let sensitivity = run(format!(
        "kind = \"sensitivity\"\nbenchmarks = [ {RULER} ]\nlow = \"inertia\"\nhigh = \"inertia\"\nwatched = \"inertia\"\n"
    ));
    let rows = &sensitivity.tables[0].rows;
    assert_eq!(rows.len(), 5);
    assert!(
        rows.iter().all(|row| row.cells[0] == Cell::Nothing),
        "nothing is sensitive, so nothing correlates"
    );
}

#[test]
fn questions_follow_one_another() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let study = "kind = \"sessions\"\nlengths = [1200]\nsamples = 1\nbefore = [0, 2]\n\
                 methods = [[\"Full\", \"full\"], [\"A\", \"inertia\"], [\"S\", \"snapkv\"]]\n";
    let findings = run(&engine, folder.path(), study);
    let table = &findings.tables[0];
    assert_eq!(table.columns, ["asked first", "after 2 other questions"]);
    assert!(
        table
            .rows
            .iter()
            .all(|row| row.cells.iter().all(|cell| cell.value().is_some()))
    );
}

#[test]
fn speed_and_correlation_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let study = "kind = \"speed\"\ncontexts = [64]\nmethods = [\"inertia\", \"inertia-lazy\"]\ntokens = 2\nrounds = 1\nfigure = \"figure-10\"\n";
    let speed = run(&engine, folder.path(), study);
    assert_eq!(
        speed.tables[0].rows[0].cells[2].value(),
        Some(1.0),
        "inertia against itself"
    );
    assert_eq!(speed.figures.len(), 1);
    let study =
        "kind = \"correlation\"\nscorers = [\"attention\", \"random\", \"learned\"]\nqueries = 2\ntokens = 200\n";
    let correlation = run(&engine, folder.path(), study);
    let table = &correlation.tables[0];
    assert_eq!(table.rows.len(), 2);
    assert_eq!(table.rows[0].cells[0].value(), Some(1.0));
    assert!(table.notes[0].contains("--scorer"));
}
