//! What does that mean? Values of arguments, and arguments together, as plain settings.

use inertiakv::policy::Method;
use inertiakv::{EngineOptions, GenerateOptions, Sampling, WeightType, catalog};
pub(crate) use inertiakv_eval::grid::kept as budget;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer};

use crate::args::{BudgetArguments, ContextArguments, GenerationArguments, ModelArguments, SamplingArguments};
use crate::failure::usage;

/// Below this many entries even a good ranking loses the thread.
pub(crate) const SMALL_BUDGET: usize = 32;

/// The model where `-m` is not given.
pub(crate) fn default_model() -> String {
    std::env::var_os("INERTIAKV_MODEL")
        .filter(|model| !model.is_empty())
        .map_or_else(
            || catalog::DEFAULT_MODEL.to_owned(),
            |model| model.to_string_lossy().into_owned(),
        )
}

/// A whole number.
pub(crate) fn whole(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| format!("it must be a whole number from 0 to {}", usize::MAX))
}

/// A whole number that is not zero.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(0) | Err(_) => Err("it must be a whole number of at least 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// Tokens of a perplexity window: half of it is scored, and its first token never is.
pub(crate) fn window(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(..4) | Err(_) => Err("it must be a whole number of at least 4".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// One of the names that a library's choice goes by in files.
pub(crate) fn named<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let from: StrDeserializer<'_, serde::de::value::Error> = text.into_deserializer();
    T::deserialize(from).map_err(|error| error.to_string())
}

/// A type that weights can be quantised to.
pub(crate) fn quantisation(text: &str) -> Result<WeightType, String> {
    let packed = text.parse().ok().filter(|kind: &WeightType| !kind.is_float());
    packed.ok_or_else(|| {
        let types = WeightType::ALL.into_iter().filter(|kind| !kind.is_float());
        let names: Vec<String> = types.map(|kind| kind.to_string().to_lowercase()).collect();
        format!("choose one of {}", names.join(", "))
    })
}

/// `512MiB` as bytes; a plain number is bytes.
pub(crate) fn memory(text: &str) -> Result<usize, String> {
    let explain = || "write a size such as `512MiB` or `4GiB`".to_owned();
    let digits = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(explain()),
    };
    let number: usize = number.parse().map_err(|_| explain())?;
    number.checked_mul(1 << shift).ok_or_else(explain)
}

/// How to open the engine.
pub(crate) fn engine_options(model: &ModelArguments, context: Option<&ContextArguments>) -> EngineOptions {
    EngineOptions {
        threads: model.threads,
        kv_type: model.kv_type,
        kv_memory: None,
        context: context.and_then(|arguments| arguments.context),
        quantise: model.quantise,
        scorer: model.scorer.clone(),
    }
}

/// The method with the budget of `--budget`, if one was given.
pub(crate) fn method(method: &Method, budget: &BudgetArguments) -> anyhow::Result<Method> {
    let Some(budget) = budget.budget else {
        return Ok(method.clone());
    };
    if !method.evicts() {
        return Err(usage(format!(
            "--budget has no effect on the method `{method}`, which keeps everything; choose another with --method, for example `inertia`"
        )));
    }
    Ok(method.clone().with_budget(budget))
}

/// The methods to compare, `full` first and once; `--budget` applies to those that evict.
pub(crate) fn methods(given: &[Method], budget: &BudgetArguments) -> anyhow::Result<Vec<Method>> {
    if budget.budget.is_some() && !given.iter().any(Method::evicts) {
        return Err(usage(
            "--budget has no effect where no method evicts; name one that does, for example `inertia`",
        ));
    }
    let mut methods = vec![Method::full()];
    for method in given {
        let method = match budget.budget {
            Some(budget) => method.clone().with_budget(budget),
            None => method.clone(),
        };
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    Ok(methods)
}

/// How to generate.
pub(crate) fn generation(arguments: &GenerationArguments) -> anyhow::Result<GenerateOptions> {
    Ok(GenerateOptions {
        ignore_end: arguments.ignore_end,
        ..answers(&arguments.sampling)?
    })
}

/// How to generate answers that end where the model ends them.
pub(crate) fn answers(arguments: &SamplingArguments) -> anyhow::Result<GenerateOptions> {
    let sampling = Sampling {
        temperature: arguments.temperature,
        top_k: arguments.top_k,
        top_p: arguments.top_p,
        min_p: arguments.min_p,
        repetition_penalty: arguments.repetition_penalty,
        seed: arguments.seed,
    };
    sampling.validate().map_err(|error| usage(error.to_string()))?;
    Ok(GenerateOptions {
        max_tokens: arguments.max_tokens,
        sampling,
        stop: arguments.stop.clone(),
        ignore_end: false,
    })
}

#[cfg(test)]
mod tests {
    use super::{at_least_one, memory, method, methods, named};
    use crate::args::BudgetArguments;
    use inertiakv::policy::{Budget, Method};
    use inertiakv_eval::metrics::ScoringProfile;

    #[test]
    fn sizes_have_units() {
        assert_eq!(memory("512MiB"), Ok(512 << 20));
        assert_eq!(memory("4 GiB"), Ok(4 << 30));
        assert_eq!(memory("3g"), Ok(3 << 30));
        assert_eq!(memory("17"), Ok(17));
        for wrong in ["", "MiB", "1.5GiB", "-1", "4TB", "99999999999999GiB"] {
            assert!(memory(wrong).is_err(), "{wrong} was accepted");
        }
    }

    #[test]
    fn names_are_those_of_files() {
        assert_eq!(named("kvpress"), Ok(ScoringProfile::Kvpress));
        assert!(named::<ScoringProfile>("x").unwrap_err().contains("official"));
    }

    #[test]
    fn counts_are_positive() {
        assert_eq!(at_least_one("3"), Ok(3));
        assert!(at_least_one("0").is_err());
        assert!(at_least_one("many").is_err());
    }

    #[test]
    fn full_is_compared_first_and_once() {
        let list: Vec<Method> = ["random", "full", "random"]
            .iter()
            .map(|m| m.parse().unwrap())
            .collect();
        let none = BudgetArguments { budget: None };
        let names = |given: &[Method], budget: &BudgetArguments| {
            let methods = methods(given, budget).unwrap();
            methods.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(&list, &none), ["full", "random"]);
        assert_eq!(names(&[Method::full()], &none), ["full"]);
        let some = BudgetArguments {
            budget: Some(Budget::Tokens(64)),
        };
        assert_eq!(names(&list, &some), ["full", "random:tokens=64"]);
        assert!(methods(&[Method::full()], &some).is_err());
    }

    #[test]
    fn a_budget_for_full_is_refused() {
        let budget = BudgetArguments {
            budget: Some(Budget::Tokens(64)),
        };
        assert!(method(&Method::full(), &budget).is_err());
        let inertia = "inertia:alpha=0.5".parse().unwrap();
        assert_eq!(
            method(&inertia, &budget).unwrap().to_string(),
            "inertia:tokens=64,alpha=0.5"
        );
    }
}
