//! How are results written as a Parquet file?
//!
//! A small part of the format (<https://parquet.apache.org/docs/file-format/>), which every reader knows: flat optional
//! columns, plain encoding, no compression, one page per column and row group. The footer is Thrift's compact protocol.

use std::path::Path;

use serde_json::{Map, Value};

use super::write;
use crate::EvalError;
use crate::run::records;

/// Rows that share a page; a page must stay below 2 GiB.
const GROUP_ROWS: usize = 10_000;
/// The encoding of levels: runs.
const RLE: i32 = 3;

/// Writes the records of a folder: one column per field of a record and of its report, `label_NAME` per label. Lists are JSON
/// texts. Returns the number of rows.
///
/// # Errors
///
/// The folder cannot be read or the file not written.
pub fn parquet(folder: &Path, file: &Path) -> Result<usize, EvalError> {
    let records = records::<Map<String, Value>>(folder)?;
    let rows: Vec<Map<String, Value>> = records.into_iter().map(|(_, record)| flat(record)).collect();
    write(file, encode(&rows))?;
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

/// Physical types, by their numbers in the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer = 2,
    Float = 5,
    Text = 6,
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

    fn push(self, value: &Value, page: &mut Vec<u8>) {
        match self {
            Self::Integer => page.extend(value.as_i64().unwrap_or_default().to_le_bytes()),
            Self::Float => page.extend(value.as_f64().unwrap_or_default().to_le_bytes()),
            Self::Text => {
                let text = match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                page.extend((text.len() as u32).to_le_bytes());
                page.extend(text.as_bytes());
            }
        }
    }
}

/// Where a column chunk lies.
struct Chunk {
    offset: usize,
    bytes: usize,
}

fn encode(rows: &[Map<String, Value>]) -> Vec<u8> {
    const MAGIC: &[u8] = b"PAR1";
    let columns = columns(rows);
    let mut file = MAGIC.to_vec();
    let mut groups: Vec<(usize, Vec<Chunk>)> = Vec::new();
    for group in rows.chunks(GROUP_ROWS) {
        let chunks = columns
            .iter()
            .map(|column| push_chunk(&mut file, column, group))
            .collect();
        groups.push((group.len(), chunks));
    }
    let footer = footer(&columns, &groups);
    file.extend(&footer);
    file.extend((footer.len() as u32).to_le_bytes());
    file.extend(MAGIC);
    file
}

fn push_chunk(file: &mut Vec<u8>, column: &Column, rows: &[Map<String, Value>]) -> Chunk {
    let values: Vec<Option<&Value>> = rows
        .iter()
        .map(|row| row.get(&column.name).filter(|value| !value.is_null()))
        .collect();
    // Which rows have a value, as runs.
    let mut levels = Vec::new();
    for run in values.chunk_by(|a, b| a.is_some() == b.is_some()) {
        varint(&mut levels, (run.len() as u64) << 1);
        levels.push(u8::from(run[0].is_some()));
    }
    let mut page = (levels.len() as u32).to_le_bytes().to_vec();
    page.extend(levels);
    for value in values.iter().flatten() {
        column.kind.push(value, &mut page);
    }
    let mut header = Thrift::default();
    header.int(1, 0); // a data page
    header.int(2, page.len() as i32);
    header.int(3, page.len() as i32);
    header.open(5);
    header.int(1, rows.len() as i32);
    header.int(2, 0); // plain
    header.int(3, RLE);
    header.int(4, RLE);
    header.close();
    let header = header.end();
    let offset = file.len();
    file.extend(&header);
    file.extend(&page);
    Chunk {
        offset,
        bytes: header.len() + page.len(),
    }
}

fn footer(columns: &[Column], groups: &[(usize, Vec<Chunk>)]) -> Vec<u8> {
    let mut meta = Thrift::default();
    meta.int(1, 1); // version
    meta.list(2, Thrift::STRUCT, columns.len() + 1);
    meta.item();
    meta.text(4, "results");
    meta.int(5, columns.len() as i32);
    meta.close();
    for column in columns {
        meta.item();
        meta.int(1, column.kind as i32);
        meta.int(3, 1); // optional
        meta.text(4, &column.name);
        if column.kind == Kind::Text {
            meta.int(6, 0); // UTF-8
        }
        meta.close();
    }
    meta.long(3, groups.iter().map(|(rows, _)| *rows as i64).sum());
    meta.list(4, Thrift::STRUCT, groups.len());
    for (rows, chunks) in groups {
        meta.item();
        meta.list(1, Thrift::STRUCT, chunks.len());
        for (column, chunk) in columns.iter().zip(chunks) {
            meta.item();
            meta.long(2, chunk.offset as i64);
            meta.open(3);
            meta.int(1, column.kind as i32);
            meta.list(2, Thrift::INT, 2);
            meta.zigzag(0); // plain
            meta.zigzag(i64::from(RLE));
            meta.list(3, Thrift::BINARY, 1);
            meta.bytes(column.name.as_bytes());
            meta.int(4, 0); // not compressed
            meta.long(5, *rows as i64);
            meta.long(6, chunk.bytes as i64);
            meta.long(7, chunk.bytes as i64);
            meta.long(9, chunk.offset as i64);
            meta.close();
            meta.close();
        }
        meta.long(2, chunks.iter().map(|chunk| chunk.bytes as i64).sum());
        meta.long(3, *rows as i64);
        meta.close();
    }
    meta.text(6, concat!("inertiakv ", env!("CARGO_PKG_VERSION")));
    meta.end()
}

/// Thrift's compact protocol: fields in rising order, each with the distance to the one before.
#[derive(Default)]
struct Thrift {
    bytes: Vec<u8>,
    last: u8,
    /// The last fields of the structs around this one.
    around: Vec<u8>,
}

impl Thrift {
    const INT: u8 = 5;
    const LONG: u8 = 6;
    const BINARY: u8 = 8;
    const LIST: u8 = 9;
    const STRUCT: u8 = 12;

    /// All fields used here are less than 16 apart.
    fn field(&mut self, number: u8, kind: u8) {
        self.bytes.push(((number - self.last) << 4) | kind);
        self.last = number;
    }

    fn zigzag(&mut self, value: i64) {
        varint(&mut self.bytes, ((value << 1) ^ (value >> 63)) as u64);
    }

    fn int(&mut self, number: u8, value: i32) {
        self.field(number, Self::INT);
        self.zigzag(i64::from(value));
    }

    fn long(&mut self, number: u8, value: i64) {
        self.field(number, Self::LONG);
        self.zigzag(value);
    }

    fn bytes(&mut self, value: &[u8]) {
        varint(&mut self.bytes, value.len() as u64);
        self.bytes.extend(value);
    }

    fn text(&mut self, number: u8, value: &str) {
        self.field(number, Self::BINARY);
        self.bytes(value.as_bytes());
    }

    fn list(&mut self, number: u8, kind: u8, count: usize) {
        self.field(number, Self::LIST);
        if count < 15 {
            self.bytes.push(((count as u8) << 4) | kind);
        } else {
            self.bytes.push(0xf0 | kind);
            varint(&mut self.bytes, count as u64);
        }
    }

    /// Begins a struct that is a field.
    fn open(&mut self, number: u8) {
        self.field(number, Self::STRUCT);
        self.item();
    }

    /// Begins a struct that is an item of a list.
    fn item(&mut self) {
        self.around.push(self.last);
        self.last = 0;
    }

    fn close(&mut self) {
        self.bytes.push(0);
        self.last = self.around.pop().unwrap_or_default();
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
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

    /// Files made this way have been read by pyarrow 26 and `DuckDB` 2.0.
    #[test]
    fn the_smallest_file_is_what_readers_expect() {
        let file = encode(&[row(json!({"n": 7})), row(json!({"n": null}))]);
        let header = [
            0x15, 0, 0x15, 32, 0x15, 32, 0x2c, 0x15, 4, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0,
        ];
        let page = [4, 0, 0, 0, 2, 1, 2, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(&file[..4], b"PAR1");
        assert_eq!(file[4..21], header);
        assert_eq!(file[21..37], page);
        let length = u32::from_le_bytes(file[file.len() - 8..file.len() - 4].try_into().unwrap());
        assert_eq!(37 + length as usize + 8, file.len());
    }
}
