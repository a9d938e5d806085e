//! Reading model files that are whole, truncated, damaged or hostile.

use inertiakv::config::ModelConfig;
use inertiakv::gguf::{GgmlType, Gguf, GgufError, GgufWriter, Value};
use inertiakv::testing::TinyModel;
use inertiakv::tokenizer::Tokenizer;
use proptest::prelude::*;

/// A small file with a value of every kind and two tensors.
fn sample() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer
        .string("general.architecture", "llama")
        .u32("a.count", 7)
        .f32("a.factor", 0.5)
        .bool("a.flag", true)
        .strings("a.names", &["one", "", "zwei"])
        .i32s("a.kinds", &[-1, 2, 3])
        .f32s("a.scores", &[0.5, -2.0])
        .raw("a.byte", 0, &[200])
        .raw("a.long", 10, &u64::MAX.to_le_bytes())
        .raw("a.negative", 11, &(-5_i64).to_le_bytes())
        .raw("a.double", 12, &0.25_f64.to_le_bytes());
    writer.tensor("first", &[4, 2], GgmlType::F32, &[1; 32]);
    writer.tensor("second", &[32], GgmlType::Q8_0, &[2; 34]);
    writer
}

fn read(writer: &GgufWriter) -> Result<Gguf, GgufError> {
    Gguf::from_bytes(writer.to_bytes())
}

/// The message of a file that must be refused: one line that mentions `words`.
fn refused(bytes: Vec<u8>, words: &[&str]) {
    let message = Gguf::from_bytes(bytes).expect_err("the file is bad").to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

fn refused_tensor(dimensions: &[u64], kind: u32, offset: u64, words: &[&str]) {
    let mut writer = sample();
    writer.describe_tensor("bad", dimensions, kind, offset);
    refused(writer.to_bytes(), &[&["`bad`"], words].concat());
}

#[test]
fn what_was_written_is_read() {
    for version in [2, 3] {
        let file = read(sample().version(version)).expect("the sample is valid");
        assert_eq!(file.version(), version);
        assert_eq!(file.require::<&str>("general.architecture").unwrap(), "llama");
        assert_eq!(file.require::<u32>("a.count").unwrap(), 7);
        assert_eq!(file.require::<usize>("a.byte").unwrap(), 200);
        assert!((file.require::<f32>("a.factor").unwrap() - 0.5).abs() < f32::EPSILON);
        assert!((file.require::<f32>("a.double").unwrap() - 0.25).abs() < f32::EPSILON);
        assert!(file.require::<bool>("a.flag").unwrap());
        assert_eq!(file.value("a.negative"), Some(&Value::I64(-5)));
        let names: Vec<&[u8]> = file.strings("a.names").unwrap().unwrap().collect();
        assert_eq!(names, [&b"one"[..], b"", b"zwei"]);
        assert_eq!(file.numbers("a.kinds").unwrap().unwrap(), [-1.0, 2.0, 3.0]);
        assert_eq!(file.numbers("a.scores").unwrap().unwrap(), [0.5, -2.0]);
        assert!(file.numbers("a.absent").unwrap().is_none());
        assert_eq!(file.keys().count(), 11);
        let second = file.tensor("second").unwrap();
        assert_eq!(
            (second.dimensions(), second.kind(), second.elements()),
            (&[32][..], GgmlType::Q8_0, 32)
        );
        assert_eq!(file.tensor_data("second").unwrap(), [2; 34]);
        assert_eq!(file.tensor_data("first").unwrap(), [1; 32]);
        assert_eq!(file.tensor_f32("first").unwrap(), [f32::from_le_bytes([1; 4]); 8]);
    }
}

#[test]
fn a_file_on_disk_is_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sample.gguf");
    sample().write(&path).unwrap();
    assert_eq!(Gguf::open(&path).unwrap().tensor_data("first").unwrap(), [1; 32]);
    let message = Gguf::open(folder.path().join("absent.gguf"))
        .expect_err("it is not there")
        .to_string();
    assert!(message.contains("absent.gguf"), "{message}");
    assert!(Gguf::open(folder.path()).is_err());
}

#[test]
fn another_alignment_is_honoured() {
    for alignment in [1, 8, 256] {
        let mut writer = GgufWriter::new();
        writer
            .alignment(alignment)
            .tensor("a", &[3], GgmlType::F32, &[1; 12])
            .tensor("b", &[1], GgmlType::F32, &[2; 4]);
        let file = read(&writer).unwrap();
        assert_eq!(file.tensor_data("b").unwrap(), [2; 4]);
        assert!(
            file.tensor("b")
                .unwrap()
                .bytes()
                .start
                .is_multiple_of(alignment as usize)
        );
    }
    for alignment in [0, 3, 1 << 17] {
        let mut writer = GgufWriter::new();
        refused(
            writer.u32("general.alignment", alignment).to_bytes(),
            &["general.alignment"],
        );
    }
}

#[test]
fn the_key_and_what_was_expected_are_named() {
    let file = read(&sample()).unwrap();
    for (error, words) in [
        (file.require::<u32>("a.absent").unwrap_err(), ["a.absent", "missing"]),
        (file.require::<u32>("a.factor").unwrap_err(), ["a.factor", "integer"]),
        (
            file.require::<u32>("a.long").unwrap_err(),
            ["a.long", "18446744073709551615"],
        ),
        (file.require::<usize>("a.negative").unwrap_err(), ["a.negative", "-5"]),
        (file.require::<&str>("a.flag").unwrap_err(), ["a.flag", "a string"]),
        (file.require::<f32>("a.count").unwrap_err(), ["a.count", "a float"]),
        (file.optional::<bool>("a.names").unwrap_err(), ["a.names", "an array"]),
        (file.strings("a.kinds").err().unwrap(), ["a.kinds", "array of strings"]),
        (file.numbers("a.names").err().unwrap(), ["a.names", "array of numbers"]),
        (file.numbers("a.count").err().unwrap(), ["a.count", "an integer"]),
        (file.tensor_data("nothing").unwrap_err(), ["nothing", "missing"]),
        (file.tensor_f32("second").unwrap_err(), ["second", "Q8_0"]),
    ] {
        let message = error.to_string();
        for word in words {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
    }
}

#[test]
fn other_formats_and_versions_are_named() {
    refused(Vec::new(), &["not a GGUF", "nothing"]);
    refused(b"GG".to_vec(), &["not a GGUF"]);
    refused(b"ggjt\x03\0\0\0".to_vec(), &["not a GGUF", "ggjt"]);
    refused(b"PK\x03\x04rest of an archive".to_vec(), &["not a GGUF"]);
    refused(b"GGUF".to_vec(), &["version"]);
    refused(sample().version(1).to_bytes(), &["version 1"]);
    refused(sample().version(4).to_bytes(), &["version 4"]);
    refused(sample().version(3_u32.swap_bytes()).to_bytes(), &["big-endian"]);
}

#[test]
fn hostile_counts_and_lengths_are_refused_before_anything_is_reserved() {
    let header = |tensors: u64, metadata: u64| {
        [
            &b"GGUF\x03\0\0\0"[..],
            &tensors.to_le_bytes(),
            &metadata.to_le_bytes(),
            &[0; 64],
        ]
        .concat()
    };
    refused(header(u64::MAX, 0), &["tensor count", "18446744073709551615"]);
    refused(header(0, u64::MAX / 2), &["metadata count"]);
    refused(header(0, 5), &["metadata count", "5"]);
    refused(header(0, 4), &["metadata key"]);

    let with = |value_type: u32, value: &[u8]| GgufWriter::new().raw("a.key", value_type, value).to_bytes();
    let array = |element: u32, count: u64| [&element.to_le_bytes()[..], &count.to_le_bytes(), &[1; 40]].concat();
    refused(with(8, &u64::MAX.to_le_bytes()), &["a.key", "18446744073709551615"]);
    refused(with(8, &1000_u64.to_le_bytes()), &["a.key", "1000"]);
    for element in [0, 4, 6, 7, 8, 10, 12] {
        refused(with(9, &array(element, u64::MAX)), &["a.key"]);
        refused(with(9, &array(element, 1 << 40)), &["a.key", "1099511627776"]);
    }
    refused(with(9, &array(9, 1)), &["a.key", "array of arrays"]);
    refused(with(9, &array(77, 1)), &["a.key", "77"]);
    refused(with(99, &[0; 16]), &["a.key", "99"]);
    refused(with(7, &[2]), &["a.key", "boolean"]);
    refused(GgufWriter::new().raw("", 0, &[0]).to_bytes(), &["metadata key"]);
    refused(
        GgufWriter::new().raw(&"k".repeat(70_000), 0, &[0]).to_bytes(),
        &["metadata key", "70000"],
    );
    refused(
        GgufWriter::new().u32("a.key", 1).u32("a.key", 2).to_bytes(),
        &["a.key", "twice"],
    );
}

#[test]
fn hostile_tensors_are_refused_by_name() {
    refused_tensor(&[], 0, 128, &["0 dimensions"]);
    refused_tensor(&[1; 5], 0, 128, &["5 dimensions"]);
    refused_tensor(&[0, 4], 0, 128, &["dimension of 0"]);
    refused_tensor(&[u64::MAX, 2], 0, 128, &["larger than any file"]);
    refused_tensor(&[1 << 32, 1 << 32], 0, 128, &["larger than any file"]);
    refused_tensor(&[1 << 62], 0, 128, &["larger than any file"]);
    refused_tensor(&[1 << 40], 0, 128, &["incomplete"]);
    refused_tensor(&[33], 8, 128, &["33", "Q8_0"]);
    refused_tensor(&[32], 4, 128, &["element type 4"]);
    refused_tensor(&[32], 9999, 128, &["9999"]);
    refused_tensor(&[1], 0, 130, &["130", "alignment"]);
    refused_tensor(&[1], 0, u64::MAX - 31, &["incomplete"]);
    refused_tensor(&[1], 0, 1 << 40, &["incomplete"]);
    refused_tensor(&[4], 0, 0, &["overlap", "`first`"]);
    let mut writer = sample();
    refused(
        writer.tensor("first", &[1], GgmlType::F32, &[0; 4]).to_bytes(),
        &["`first`", "twice"],
    );
    let mut writer = GgufWriter::new();
    refused(
        writer.tensor(&"n".repeat(300), &[1], GgmlType::F32, &[0; 4]).to_bytes(),
        &["tensor name", "300"],
    );
}

#[test]
fn every_truncation_is_refused() {
    let whole = sample().to_bytes();
    for length in 0..whole.len() {
        assert!(
            Gguf::from_bytes(whole[..length].to_vec()).is_err(),
            "{length} of {} bytes",
            whole.len()
        );
    }
    // Padding at the end is harmless.
    assert!(Gguf::from_bytes([whole, vec![0; 100]].concat()).is_ok());
}

/// Reads everything there is in a file, as loading a model does.
fn read_everything(bytes: Vec<u8>) {
    let Ok(file) = Gguf::from_bytes(bytes) else { return };
    for key in file.keys() {
        let _ = file.strings(key).map(|strings| strings.map(Iterator::count));
        let _ = file.numbers(key);
    }
    for tensor in file.tensors() {
        let _ = file.tensor_f32(tensor.name());
    }
    let _ = ModelConfig::from_gguf(&file).map_err(|error| error.to_string());
    let _ = Tokenizer::from_gguf(&file).map(|tokenizer| {
        let _ = tokenizer.decode(&tokenizer.encode("some text, 12\n <|im_end|>", true));
    });
}

/// Places where a change is likely to reach interesting code: the header and the descriptions, not the weights.
fn place() -> impl Strategy<Value = prop::sample::Index> {
    any::<prop::sample::Index>()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_files_never_panic(changes in prop::collection::vec((place(), any::<u8>()), 1..6), cut in prop::option::of(place())) {
        let model = TinyModel { layers: 1, hidden: 32, heads: 1, kv_heads: 1, head_dim: 32, feed_forward: 32, ..TinyModel::default() };
        let mut bytes = model.to_bytes();
        // The descriptions come first; most of what follows is weights, where any byte is as good as another.
        let reach = 9_000.min(bytes.len());
        for (place, value) in changes {
            let at = place.index(reach);
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_everything(bytes);
    }

    #[test]
    fn damaged_samples_never_panic(changes in prop::collection::vec((place(), any::<u8>()), 1..4)) {
        let mut bytes = sample().to_bytes();
        for (place, value) in changes {
            let at = place.index(bytes.len());
            bytes[at] = value;
        }
        read_everything(bytes);
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        read_everything([&b"GGUF\x03\0\0\0"[..], &noise].concat());
    }
}
