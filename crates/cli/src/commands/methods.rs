//! `inertiakv methods`: which eviction methods are there, and what does one do?

use inertiakv::policy::{Method, Preset, Rule, Setting, Stage};
use serde::Serialize;

use crate::args::MethodsArguments;
use crate::printer::Printer;

/// A named method as it is printed in JSON.
#[derive(Debug, Serialize)]
struct Record {
    name: &'static str,
    summary: &'static str,
    stages: Vec<String>,
    ranks: &'static str,
    memory_freed: bool,
    source: &'static str,
}

/// A method in full as it is printed in JSON.
#[derive(Debug, Serialize)]
struct Explanation {
    method: String,
    rules: Vec<RuleRecord>,
}

#[derive(Debug, Serialize)]
struct RuleRecord {
    #[serde(flatten)]
    preset: Record,
    stage: String,
    settings: Vec<SettingRecord>,
}

#[derive(Debug, Serialize)]
struct SettingRecord {
    key: &'static str,
    value: String,
    purpose: &'static str,
    changed: bool,
}

pub(crate) fn run(arguments: &MethodsArguments, printer: &Printer) -> anyhow::Result<()> {
    let json = arguments.output.json;
    match &arguments.method {
        None if json => printer.json(&Preset::ALL.map(|preset| record(preset, preset != Preset::Full))),
        None => list(printer),
        Some(method) if json => printer.json(&Explanation {
            method: method.to_string(),
            rules: rules(method).map(|(stage, rule)| rule_record(stage, rule)).collect(),
        }),
        Some(method) => explain(method, printer),
    }
}

fn list(printer: &Printer) -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = Preset::ALL
        .into_iter()
        .map(|preset| {
            let stages: Vec<String> = preset.stages().iter().map(Stage::to_string).collect();
            let freed = if preset == Preset::Full { "nothing" } else { "freed" };
            vec![
                preset.name().to_owned(),
                stages.join(", "),
                preset.ranks().to_owned(),
                freed.to_owned(),
                preset.source().to_owned(),
            ]
        })
        .collect();
    printer.table(&["method", "stage", "ranks entries by", "memory", "source"], &rows, &[])?;
    printer.line("")?;
    printer
        .line("Of two stages the first is meant; the other is `name:at=STAGE`. A method of the prompt and one of")?;
    printer.line("decoding are joined by a plus. `inertiakv methods NAME` explains one with its keys.")?;
    Ok(())
}

fn explain(method: &Method, printer: &Printer) -> anyhow::Result<()> {
    for (index, (stage, rule)) in rules(method).enumerate() {
        if index > 0 {
            printer.line("")?;
        }
        let preset = rule.name;
        printer.line(&format!("{preset} ({}): {}", when(stage, rule), preset.summary()))?;
        printer.line(&format!("ranks entries by: {}", preset.ranks()))?;
        printer.line(&format!("memory: {}", memory(rule)))?;
        printer.line(&format!("source: {}", preset.source()))?;
        let settings = rule.settings(stage);
        let changes = settings.iter().filter(|setting| setting.changed);
        let changes: Vec<String> = changes
            .map(|setting| format!("{}={}", setting.key, setting.value))
            .collect();
        if !changes.is_empty() {
            printer.line(&format!("changed from the preset: {}", changes.join(", ")))?;
        }
        if rule.policy.evicts() {
            printer.line("")?;
            let rows: Vec<Vec<String>> = settings
                .into_iter()
                .map(|setting| vec![setting.key.to_owned(), setting.value, setting.purpose.to_owned()])
                .collect();
            printer.table(&["key", "value", "what it is"], &rows, &[])?;
        }
    }
    Ok(())
}

/// What a method does, stage by stage.
fn rules(method: &Method) -> impl Iterator<Item = (Stage, &Rule)> {
    let prefill = method.prefill.iter().map(|rule| (Stage::Prefill, rule));
    // Decoding that evicts nothing is worth a word only where nothing else happens.
    let decode = Some((Stage::Decode, &method.decode));
    prefill.chain(decode.filter(|(_, rule)| method.prefill.is_none() || rule.policy.evicts()))
}

fn when(stage: Stage, rule: &Rule) -> &'static str {
    match stage {
        Stage::Decode if !rule.policy.evicts() => "nothing is evicted",
        Stage::Decode => "evicts at the end of decode steps",
        Stage::Prefill if rule.policy.interval == inertiakv::policy::Policy::WHOLE_PROMPT => {
            "compresses the prompt once, when it is complete"
        }
        Stage::Prefill => "compresses the prompt while it runs: an approximation that bounds its memory",
    }
}

fn memory(rule: &Rule) -> &'static str {
    match (rule.policy.evicts(), rule.policy.masked) {
        (false, _) => "everything is kept",
        (true, true) => "nothing is freed: entries are hidden from attention",
        (true, false) => "freed at once",
    }
}

fn record(preset: Preset, memory_freed: bool) -> Record {
    Record {
        name: preset.name(),
        summary: preset.summary(),
        stages: preset.stages().iter().map(Stage::to_string).collect(),
        ranks: preset.ranks(),
        memory_freed,
        source: preset.source(),
    }
}

fn rule_record(stage: Stage, rule: &Rule) -> RuleRecord {
    RuleRecord {
        preset: record(rule.name, rule.policy.evicts() && !rule.policy.masked),
        stage: stage.to_string(),
        settings: rule.settings(stage).into_iter().map(setting_record).collect(),
    }
}

fn setting_record(setting: Setting) -> SettingRecord {
    SettingRecord {
        key: setting.key,
        value: setting.value,
        purpose: setting.purpose,
        changed: setting.changed,
    }
}
