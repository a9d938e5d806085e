//! How are results written as a Parquet file?

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use super::write;
use crate::EvalError;
use crate::run::records;

/// Rows that a reader takes at a time.
const GROUP_ROWS: usize = 10_000;

/// Writes the records of a folder: one column per field of a record and of its report, `label_NAME` per label. Lists are JSON
/// texts. Returns the number of rows.
///
/// # Errors
///
/// The folder cannot be read or the file not written.
pub fn parquet(folder: &Path, file: &Path) -> Result<usize, EvalError> {
    let records = records::<Map<String, Value>>(folder)?;
    let rows: Vec<Map<String, Value>> = records.into_iter().map(|(_, record)| flat(record)).collect();
    let content = encode(&rows).map_err(|error| EvalError::Unwritable {
        path: file.to_owned(),
        source: std::io::Error::other(error),
    })?;
    write(file, content)?;
    Ok(rows.len())
}

/// A record without nesting.
fn flat(record: Map<String, Value>) -> Map<String, Value> {
    let mut row = Map::new();
    for (name, value) in record {
        match (name.as_str(), value) {
            ("labels", Value::Object(labels)) => {
                row.extend(labels.into_iter().map(|(name, value)| (format!("label_{name}"), value)));
            }
            // The report repeats the model and the method.
            ("report", Value::Object(report)) => {
                row.extend(
                    report
                        .into_iter()
                        .filter(|(name, _)| name != "model" && name != "method"),
                );
            }
            // Failed: there are no columns to fill.
            ("report", _) => {}
            (_, value) => drop(row.insert(name, value)),
        }
    }
    row
}

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer,
    Float,
    Text,
}

struct Column {
    name: String,
    kind: Kind,
}

fn columns(rows: &[Map<String, Value>]) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for (name, value) in rows.iter().flatten() {
        let kind = match value {
            Value::Null => continue,
            Value::Number(number) if number.is_i64() => Kind::Integer,
            Value::Number(_) => Kind::Float,
            _ => Kind::Text,
        };
        match columns.iter_mut().find(|column| column.name == *name) {
            None => columns.push(Column {
                name: name.clone(),
                kind,
            }),
            Some(column) => column.kind = column.kind.and(kind),
        }
    }
    columns
}

impl Kind {
    /// What holds values of both.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (Self::Text, _) | (_, Self::Text) => Self::Text,
            _ => Self::Float,
        }
    }
}

impl Column {
    fn field(&self) -> Result<Type, ParquetError> {
        let (physical, logical) = match self.kind {
            Kind::Integer => (Physical::INT64, None),
            Kind::Float => (Physical::DOUBLE, None),
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        Type::primitive_type_builder(&self.name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical)
            .build()
    }

    fn write<W: std::io::Write + Send>(
        &self,
        rows: &[Map<String, Value>],
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        match self.kind {
            Kind::Integer => self.write_as::<Int64Type, W>(rows, group, |value| value.as_i64().unwrap_or_default()),
            Kind::Float => self.write_as::<DoubleType, W>(rows, group, |value| value.as_f64().unwrap_or_default()),
            Kind::Text => self.write_as::<ByteArrayType, W>(rows, group, |value| match value {
                Value::String(text) => text.as_str().into(),
                other => other.to_string().as_str().into(),
            }),
        }
    }

    fn write_as<T: DataType, W: std::io::Write + Send>(
        &self,
        rows: &[Map<String, Value>],
        group: &mut SerializedRowGroupWriter<'_, W>,
        read: impl Fn(&Value) -> T::T,
    ) -> Result<(), ParquetError> {
        let present = |row| Map::get(row, &self.name).filter(|value| !value.is_null());
        let levels: Vec<i16> = rows.iter().map(|row| i16::from(present(row).is_some())).collect();
        let values: Vec<T::T> = rows.iter().filter_map(present).map(read).collect();
        let mut column = group
            .next_column()?
            .ok_or_else(|| ParquetError::General(format!("no column is left for `{}`", self.name)))?;
        column.typed::<T>().write_batch(&values, Some(&levels), None)?;
        column.close()
    }
}

fn encode(rows: &[Map<String, Value>]) -> Result<Vec<u8>, ParquetError> {
    let columns = columns(rows);
    let fields = columns.iter().map(|column| column.field().map(Arc::new));
    let schema = Type::group_type_builder("results")
        .with_fields(fields.collect::<Result<_, _>>()?)
        .build()?;
    let properties = WriterProperties::builder()
        .set_created_by(concat!("inertiakv ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, Arc::new(schema), Arc::new(properties))?;
    for rows in rows.chunks(GROUP_ROWS) {
        let mut group = writer.next_row_group()?;
        for column in &columns {
            column.write(rows, &mut group)?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use parquet::file::reader::SerializedFileReader;
    use serde_json::{Map, Value, json};

    use super::{Kind, columns, encode, flat};

    fn row(value: Value) -> Map<String, Value> {
        let Value::Object(row) = value else { panic!("an object") };
        row
    }

    #[test]
    fn records_become_flat() {
        let record = row(json!({"key": "k", "labels": {"length": "512"}, "answers": ["a"],
            "report": {"model": "m", "budget": 5}, "score": 1.0}));
        let flat = flat(record);
        let names: Vec<&str> = flat.keys().map(String::as_str).collect();
        assert_eq!(names, ["answers", "budget", "key", "label_length", "score"]);
    }

    #[test]
    fn a_column_holds_what_all_rows_have() {
        let rows = [
            row(json!({"a": 1, "b": 1, "c": null, "d": "x"})),
            row(json!({"a": 2, "b": 0.5, "d": 1})),
        ];
        let kinds: Vec<(String, Kind)> = columns(&rows).into_iter().map(|c| (c.name, c.kind)).collect();
        let expected = [("a", Kind::Integer), ("b", Kind::Float), ("d", Kind::Text)];
        assert_eq!(kinds, expected.map(|(name, kind)| (name.to_owned(), kind)));
    }

    #[test]
    fn a_file_reads_back_as_it_was_written() {
        let rows = [
            row(json!({"n": 7, "x": 0.5, "s": "ä"})),
            row(json!({"n": null, "x": 2, "s": ["a"]})),
        ];
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&encode(&rows).unwrap()).unwrap();
        let file = SerializedFileReader::new(file).unwrap();
        let read: Vec<String> = file.into_iter().map(|row| row.unwrap().to_string()).collect();
        assert_eq!(read, [r#"{n: 7, s: "ä", x: 0.5}"#, r#"{n: null, s: "["a"]", x: 2.0}"#]);
        assert!(!encode(&[]).unwrap().is_empty());
    }
}
