//! The textual form of a method: `name:key=value,…`, or two of them joined by a plus.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::aggregation::Aggregation;
use crate::budget::Budget;
use crate::coupling::{Across, Share};
use crate::error::PolicyError;
use crate::method::{Method, Rule, Stage};
use crate::policy::Policy;
use crate::preset::Preset;
use crate::protect::Protect;
use crate::ratio::Ratio;
use crate::scorer::Scorer;

/// One key of the textual form.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// Completes "`key` is …" with kind and range.
    pub(crate) expected: &'static str,
    pub(crate) purpose: &'static str,
}

const fn key(name: &'static str, expected: &'static str, purpose: &'static str) -> Key {
    Key {
        name,
        expected,
        purpose,
    }
}

/// All keys, in the order they are printed.
pub(crate) const KEYS: [Key; 25] = [
    key(
        "at",
        "`prefill` or `decode`",
        "the stage, where a method has both and stands alone",
    ),
    key(
        "ratio",
        "a decimal from 0 to below 1",
        "budget: the share of the prompt's entries that leaves",
    ),
    key("tokens", "a whole number of at least 1", "budget: entries that stay"),
    key(
        "seen_ratio",
        "a decimal from 0 to below 1",
        "budget: the share of all tokens so far that leaves",
    ),
    key(
        "alpha",
        "a decimal from 0 to below 1",
        "weight of the past in the moving average",
    ),
    key(
        "refresh",
        "a whole number of at least 1, or `once`",
        "steps between two scorings",
    ),
    key(
        "aggregation",
        "`ema`, `adaptive`, `single-step`, `cumulative`, or `mean` with a number of scorings up to 256 such as `mean64`",
        "how scores become the utility",
    ),
    key(
        "reactive",
        "`true` or `false`",
        "lower alpha to 0.3 for one scoring after a step that ranks otherwise than the moving average",
    ),
    key(
        "coupling",
        "`sequential`, `layer-mean`, `per-layer` or `per-head`",
        "which layers and heads share a ranking",
    ),
    key(
        "scorer",
        "`attention`, `value-norm`, `entropy`, `key-diff`, `key-norm`, `recency`, `random`, `learned`, or for a prompt `expected-attention` or `reconstruction`",
        "what one layer says about an entry",
    ),
    key(
        "interval",
        "a whole number of at least 1, or `prompt`",
        "entries above the budget at which an eviction is due; of a prompt: when it is complete, or whenever so much is",
    ),
    key("sinks", "a whole number", "first positions that always stay"),
    key("recent", "a whole number", "last positions that always stay"),
    key(
        "reserve",
        "a decimal from 0 to 1, `none`, `standard` (0.15) or `high` (0.3)",
        "share of the budget reserved for first, last and evenly spread positions",
    ),
    key(
        "rescue",
        "`true` or `false`",
        "keep each layer's best entries at the first large eviction",
    ),
    key(
        "layers",
        "a range of layers numbered from 0 such as `4-11`, or `all`",
        "the layers that are scored",
    ),
    key("seed", "a whole number", "seed of scorer `random`"),
    key(
        "window",
        "a whole number from 1 to 1024",
        "last queries of a step whose attention counts",
    ),
    key(
        "pool",
        "`mean`, `max`, or `power2` to `power16`",
        "how heads become one score",
    ),
    key(
        "kernel",
        "`none`, or `max`, `avg` or `pad` with an odd width from 3 to 255 such as `max7`",
        "smoothing over neighbouring positions before ranking",
    ),
    key(
        "share",
        "`uniform`, `layer` or `model`",
        "under coupling=per-head: the heads that compete for entries",
    ),
    key(
        "safeguard",
        "a decimal from 0 to 1, or `none`",
        "the share of the budget no head can lose to another; means share=layer where no share is given",
    ),
    key(
        "future",
        "a whole number from 1 to 65536",
        "positions after the prompt that scorer `expected-attention` looks at",
    ),
    key(
        "chunk",
        "a whole number from 16 to 65536",
        "tokens of the prompt that scorer `reconstruction` repeats at a time",
    ),
    key(
        "masked",
        "`true` or `false`",
        "of a prompt: hide entries from attention and free nothing, as published code does",
    ),
];

/// What [`Budget`] reads where it stands alone.
const BUDGET: &str =
    "`10%` (what stays), `ratio=0.9` (what leaves), `tokens=512`, `seen_ratio=0.9` or a whole number of entries";

pub(crate) fn key_names() -> String {
    KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
}

pub(crate) fn bad_value(key: &'static str, value: &str) -> PolicyError {
    let expected = KEYS
        .iter()
        .find(|known| known.name == key)
        .map_or(BUDGET, |known| known.expected);
    PolicyError::BadValue {
        key,
        value: value.to_owned(),
        expected,
    }
}

pub(crate) fn whole(key: &'static str, value: &str) -> Result<usize, PolicyError> {
    // `parse` alone would take a leading plus.
    if value.bytes().all(|byte| byte.is_ascii_digit()) {
        value.parse().map_err(|_| bad_value(key, value))
    } else {
        Err(bad_value(key, value))
    }
}

pub(crate) fn whole32(key: &'static str, value: &str) -> Result<u32, PolicyError> {
    u32::try_from(whole(key, value)?).map_err(|_| bad_value(key, value))
}

pub(crate) fn fraction(key: &'static str, value: &str) -> Result<Ratio, PolicyError> {
    value.parse().map_err(|_| bad_value(key, value))
}

impl FromStr for Method {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let mut parts = parts(text.trim()).into_iter();
        let method = match (parts.next(), parts.next(), parts.next()) {
            (Some(prefill), Some(decode), None) => Method {
                prefill: Some(rule(prefill, Some(Stage::Prefill))?.1).filter(|rule| rule.name != Preset::Full),
                decode: rule(decode, Some(Stage::Decode))?.1,
            },
            (Some(alone), None, None) => match rule(alone, None)? {
                (Stage::Prefill, rule) => Method {
                    prefill: Some(rule),
                    decode: Rule::full(),
                },
                (Stage::Decode, rule) => Method {
                    prefill: None,
                    decode: rule,
                },
            },
            _ => return Err(PolicyError::TooManyStages { text: text.to_owned() }),
        };
        method.validate()?;
        Ok(method)
    }
}

/// The text at every plus that comes before a name: no other plus joins methods.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (place, _) in text.match_indices('+') {
        if text[place + 1..]
            .trim_start()
            .starts_with(|first: char| first.is_ascii_alphabetic())
        {
            parts.push(&text[start..place]);
            start = place + 1;
        }
    }
    parts.push(&text[start..]);
    parts
}

/// One method of a text, at the stage it is joined at, or that it names, or that is its own.
fn rule(text: &str, joined_at: Option<Stage>) -> Result<(Stage, Rule), PolicyError> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let name: Preset = name.trim().parse()?;
    let values = pairs(rest)?;
    if name == Preset::Full
        && let Some((&key, _)) = values.first_key_value()
    {
        return Err(PolicyError::Conflict {
            key,
            reason: "`full` keeps every entry and has no settings; drop them",
        });
    }
    let asked = values.get("at").map(|value| value.parse()).transpose()?;
    if joined_at.is_some() && asked.is_some() {
        return Err(PolicyError::Conflict {
            key: "at",
            reason: "methods joined by a plus have their stages by their order; drop at",
        });
    }
    let stage = joined_at.or(asked).unwrap_or(name.stages()[0]);
    // `full` before a plus compresses nothing, which is what no prefill method does.
    if !name.stages().contains(&stage) && name != Preset::Full {
        return Err(PolicyError::WrongStage { name, stage });
    }
    let policy = with_values(name.policy(stage), &values)?;
    Ok((stage, Rule { name, policy }))
}

fn pairs(text: &str) -> Result<BTreeMap<&'static str, &str>, PolicyError> {
    let mut values = BTreeMap::new();
    if text.trim().is_empty() {
        return Ok(values);
    }
    for pair in text.split(',') {
        let malformed = || PolicyError::MalformedPair {
            pair: pair.trim().to_owned(),
        };
        let (name, value) = pair.split_once('=').ok_or_else(malformed)?;
        let (name, value) = (name.trim(), value.trim());
        let known = KEYS.iter().find(|key| key.name == name);
        let key = known
            .ok_or_else(|| PolicyError::UnknownKey { key: name.to_owned() })?
            .name;
        if value.is_empty() {
            return Err(malformed());
        }
        if values.insert(key, value).is_some() {
            return Err(PolicyError::DuplicateKey { key });
        }
    }
    Ok(values)
}

/// The policy with the values of a text put in. Values are checked for their kind here, for their range by
/// [`Policy::validate`].
fn with_values(mut policy: Policy, values: &BTreeMap<&'static str, &str>) -> Result<Policy, PolicyError> {
    let get = |key: &str| values.get(key).copied();
    if let Some(budget) = budget(values)? {
        policy.budget = budget;
    }
    if let Some(value) = get("aggregation") {
        policy.aggregation = match value {
            "ema" => Aggregation::Ema(policy.aggregation.alpha().unwrap_or(Policy::ALPHA)),
            "adaptive" => Aggregation::Adaptive,
            "single-step" => Aggregation::SingleStep,
            "cumulative" => Aggregation::Cumulative,
            _ => match value.strip_prefix("mean").map(|scores| whole("aggregation", scores)) {
                Some(Ok(scores)) => Aggregation::Mean(scores),
                _ => return Err(bad_value("aggregation", value)),
            },
        };
    }
    if let Some(value) = get("alpha") {
        if policy.aggregation.alpha().is_none() {
            let reason = "only the moving average has one; add aggregation=ema or drop alpha";
            return Err(PolicyError::Conflict { key: "alpha", reason });
        }
        policy.aggregation = Aggregation::Ema(fraction("alpha", value)?);
    }
    if let Some(value) = get("scorer") {
        let scorer: Scorer = value.parse()?;
        // A scorer named again keeps what it has.
        if std::mem::discriminant(&scorer) != std::mem::discriminant(&policy.scorer) {
            policy.scorer = scorer;
        }
    }
    if let Some(value) = get("seed") {
        if !matches!(policy.scorer, Scorer::Random(_)) {
            let reason = "only random scores have one; add scorer=random or drop seed";
            return Err(PolicyError::Conflict { key: "seed", reason });
        }
        policy.scorer = Scorer::Random(whole("seed", value)? as u64);
    }
    if let Some(value) = get("future") {
        let Scorer::ExpectedAttention(future) = &mut policy.scorer else {
            let reason = "only expected attention looks ahead; add scorer=expected-attention or drop future";
            return Err(PolicyError::Conflict { key: "future", reason });
        };
        *future = whole32("future", value)?;
    }
    if let Some(value) = get("chunk") {
        let Scorer::Reconstruction(chunk) = &mut policy.scorer else {
            let reason = "only reconstruction repeats the prompt; add scorer=reconstruction or drop chunk";
            return Err(PolicyError::Conflict { key: "chunk", reason });
        };
        *chunk = whole32("chunk", value)?;
    }
    set(&mut policy.refresh, get("refresh"))?;
    set(&mut policy.coupling, get("coupling"))?;
    set(&mut policy.head_pooling, get("pool"))?;
    set(&mut policy.smoothing, get("kernel"))?;
    match get("interval") {
        Some("prompt") => policy.interval = Policy::WHOLE_PROMPT,
        _ => set_whole(&mut policy.interval, "interval", values)?,
    }
    set_whole(&mut policy.window, "window", values)?;
    set_whole(&mut policy.protect.sinks, "sinks", values)?;
    set_whole(&mut policy.protect.recent, "recent", values)?;
    if let Some(value) = get("reserve") {
        policy.protect.reserve = Protect::parse_reserve(value)?;
    }
    set_flag(&mut policy.protect.rescue, "rescue", values)?;
    set_flag(&mut policy.reactive, "reactive", values)?;
    set_flag(&mut policy.masked, "masked", values)?;
    match get("layers") {
        None => {}
        Some("all") => policy.layers = None,
        Some(value) => policy.layers = Some(value.parse()?),
    }
    policy.share = share(policy.share, get("share"), get("safeguard"))?;
    Ok(policy)
}

/// A share with its two keys put in.
fn share(share: Share, across: Option<&str>, safeguard: Option<&str>) -> Result<Share, PolicyError> {
    let mut new_across = match across {
        Some(across) => Share::parse(across)?,
        None => share.across(),
    };
    let new_safeguard = match safeguard {
        Some("none") => None,
        Some(value) => Some(fraction("safeguard", value)?),
        None if new_across.is_some() => share.safeguard().or(Some(Ratio::ZERO)),
        None => None,
    };
    if safeguard.is_some() && across.is_none() {
        new_across = new_safeguard.and(new_across.or(Some(Across::Layer)));
    }
    match (new_across, new_safeguard) {
        (None, None) => Ok(Share::Uniform),
        (Some(across), Some(safeguard)) => Ok(Share::Adaptive { across, safeguard }),
        _ => Err(PolicyError::Conflict {
            key: "safeguard",
            reason: "only heads that compete have one; use share=layer or share=model with a decimal, or neither",
        }),
    }
}

fn budget(values: &BTreeMap<&'static str, &str>) -> Result<Option<Budget>, PolicyError> {
    let mut found = None;
    for key in ["ratio", "tokens", "seen_ratio"] {
        let Some(&value) = values.get(key) else { continue };
        let budget = match key {
            "ratio" => Budget::Ratio(fraction(key, value)?),
            "tokens" => Budget::Tokens(whole(key, value)?),
            _ => Budget::SeenRatio(fraction(key, value)?),
        };
        if found.replace(budget).is_some() {
            return Err(PolicyError::Conflict {
                key,
                reason: "another budget is given already; keep one of them",
            });
        }
    }
    Ok(found)
}

fn set<T: FromStr<Err = PolicyError>>(field: &mut T, value: Option<&str>) -> Result<(), PolicyError> {
    if let Some(value) = value {
        *field = value.parse()?;
    }
    Ok(())
}

fn set_whole(field: &mut usize, key: &'static str, values: &BTreeMap<&'static str, &str>) -> Result<(), PolicyError> {
    if let Some(value) = values.get(key) {
        *field = whole(key, value)?;
    }
    Ok(())
}

fn set_flag(field: &mut bool, key: &'static str, values: &BTreeMap<&'static str, &str>) -> Result<(), PolicyError> {
    if let Some(value) = values.get(key) {
        *field = value.parse().map_err(|_| bad_value(key, value))?;
    }
    Ok(())
}

impl fmt::Display for Method {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Fields are public: what evicts nothing is `full`, whatever it is called.
        let prefill = self.prefill.as_ref().filter(|rule| rule.policy.evicts());
        let decode = Some(&self.decode).filter(|rule| rule.policy.evicts());
        let text = match (prefill, decode) {
            (None, None) => Preset::Full.name().to_owned(),
            (Some(prefill), None) => rule_text(prefill, Stage::Prefill, true),
            (None, Some(decode)) => rule_text(decode, Stage::Decode, true),
            (Some(prefill), Some(decode)) => {
                let prefill = rule_text(prefill, Stage::Prefill, false);
                format!("{prefill}+{}", rule_text(decode, Stage::Decode, false))
            }
        };
        formatter.pad(&text)
    }
}

fn rule_text(rule: &Rule, stage: Stage, alone: bool) -> String {
    // Nor does a name say anything of a policy where it evicts nothing or has no such stage.
    let name = match (rule.name, stage) {
        (name, _) if name != Preset::Full && name.stages().contains(&stage) => name,
        (_, Stage::Prefill) => Preset::Tova,
        (_, Stage::Decode) => Preset::Inertia,
    };
    let base = name.policy(stage);
    let mut pairs = Vec::new();
    if alone && stage != name.stages()[0] {
        pairs.push(format!("at={stage}"));
    }
    let changed = settings(&rule.policy, &base).filter(|setting| setting.changed);
    pairs.extend(changed.map(|setting| format!("{}={}", setting.key, setting.value)));
    if pairs.is_empty() {
        name.name().to_owned()
    } else {
        format!("{name}:{}", pairs.join(","))
    }
}

/// One key of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key.
    pub key: &'static str,
    /// The value as it would be written.
    pub value: String,
    /// What the key does.
    pub purpose: &'static str,
    /// Whether the value differs from the preset's, which is what the words about a method describe.
    pub changed: bool,
}

impl Rule {
    /// Every key that means something for the rule at a stage.
    #[must_use]
    pub fn settings(&self, stage: Stage) -> Vec<Setting> {
        let other: &[&str] = match stage {
            Stage::Prefill => &["refresh", "aggregation", "reactive", "reserve", "rescue"],
            Stage::Decode => &["masked"],
        };
        settings(&self.policy, &self.name.policy(stage))
            .filter(|setting| !other.contains(&setting.key))
            .collect()
    }
}

/// Every key for which the policy has a value, beside what it is in another policy.
fn settings(policy: &Policy, base: &Policy) -> impl Iterator<Item = Setting> {
    KEYS.iter().filter_map(|key| {
        let value = value_of(key.name, policy)?;
        Some(Setting {
            key: key.name,
            changed: value_of(key.name, base).as_ref() != Some(&value),
            value,
            purpose: key.purpose,
        })
    })
}

/// The value of a key as it would be written, or `None` where the policy has no such setting.
fn value_of(key: &str, policy: &Policy) -> Option<String> {
    let value = match (key, policy.budget) {
        ("ratio", Budget::Ratio(ratio)) | ("seen_ratio", Budget::SeenRatio(ratio)) => ratio.to_string(),
        ("tokens", Budget::Tokens(tokens)) => tokens.to_string(),
        ("alpha", _) => policy.aggregation.alpha()?.to_string(),
        ("refresh", _) => policy.refresh.to_string(),
        ("aggregation", _) => policy.aggregation.to_string(),
        ("reactive", _) => policy.reactive.to_string(),
        ("coupling", _) => policy.coupling.to_string(),
        ("scorer", _) => policy.scorer.to_string(),
        ("interval", _) if policy.interval == Policy::WHOLE_PROMPT => "prompt".to_owned(),
        ("interval", _) => policy.interval.to_string(),
        ("sinks", _) => policy.protect.sinks.to_string(),
        ("recent", _) => policy.protect.recent.to_string(),
        ("reserve", _) => policy.protect.reserve.to_string(),
        ("rescue", _) => policy.protect.rescue.to_string(),
        ("layers", _) => policy
            .layers
            .map_or_else(|| "all".to_owned(), |range| range.to_string()),
        ("seed", _) => match policy.scorer {
            Scorer::Random(seed) => seed.to_string(),
            _ => return None,
        },
        ("window", _) => policy.window.to_string(),
        ("pool", _) => policy.head_pooling.to_string(),
        ("kernel", _) => policy.smoothing.to_string(),
        ("share", _) => policy.share.to_string(),
        ("safeguard", _) => policy
            .share
            .safeguard()
            .map_or_else(|| "none".to_owned(), |safeguard| safeguard.to_string()),
        ("future", _) => match policy.scorer {
            Scorer::ExpectedAttention(future) => future.to_string(),
            _ => return None,
        },
        ("chunk", _) => match policy.scorer {
            Scorer::Reconstruction(chunk) => chunk.to_string(),
            _ => return None,
        },
        ("masked", _) => policy.masked.to_string(),
        _ => return None,
    };
    Some(value)
}
