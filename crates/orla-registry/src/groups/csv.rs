//! Tables as text: CSV and similar formats (RFC 4180, with any delimiter).

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use rtfs::{Map, Value};

use crate::arguments::{Arguments, list, name_of, text};
use crate::builtin::{Builtin, Parameter, defaulted, example, optional, required};
use crate::error::BuiltinError;
use crate::groups::field;
use crate::limits::{BoundedText, deep, items_fit, vector};
use crate::schema::{BOOLEAN, TEXT, TEXTS};

type Result<T> = std::result::Result<T, BuiltinError>;

const DELIMITER: Parameter = defaulted(
    "delimiter",
    TEXT,
    "\",\"",
    "What stands between fields: one ASCII character, such as a tab.",
);

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "csv.parse",
        title: "Parse CSV",
        description: "The rows of a CSV text: objects by the names of the first row, or with `header: false` lists. \
                      Fields are texts, unless `typed` asks for numbers, booleans and nulls where they are written.",
        parameters: &[
            required("text", TEXT, "The CSV text."),
            defaulted("header", BOOLEAN, "true", "Whether the first row has the names of the columns."),
            DELIMITER,
            defaulted(
                "typed",
                BOOLEAN,
                "false",
                "Read fields that are numbers, true, false or empty as such. What has leading zeros stays text.",
            ),
        ],
        output: r#""type":"array","items":{"type":["object","array"]}"#,
        examples: &[
            example(
                r#"{"text":"name,n\n\"Doe, J\",1\nx,\n","typed":true}"#,
                r#"[{"name":"Doe, J","n":1},{"name":"x","n":null}]"#,
            ),
            example(r#"{"text":"a;b\n1;2","header":false,"delimiter":";"}"#, r#"[["a","b"],["1","2"]]"#),
        ],
        run: parse,
    },
    Builtin {
        name: "csv.print",
        title: "Print CSV",
        description: "Rows as CSV text: objects, whose keys become columns in the order in which they first come, or \
                      lists. Null is an empty field; objects and lists within are written as JSON.",
        parameters: &[
            required("rows", r#""type":"array","items":{"type":["object","array"]}"#, "The rows."),
            optional("columns", TEXTS, "The columns of objects, in order; without it, all keys."),
            defaulted(
                "header",
                BOOLEAN,
                "true",
                "Whether the names of the columns come first, for objects.",
            ),
            DELIMITER,
        ],
        output: TEXT,
        examples: &[
            example(
                r#"{"rows":[{"a":1,"b":"x, y"},{"b":null,"c":true}]}"#,
                r#""a,b,c\n1,\"x, y\",\n,,true\n""#,
            ),
            example(r#"{"rows":[[1,2],["a"]]}"#, r#""1,2\na\n""#),
        ],
        run: print,
    },
];

fn delimiter(args: &Arguments<'_>) -> Result<u8> {
    match args.text_or("delimiter", ",")?.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(*byte),
        _ => Err(BuiltinError::content(
            "delimiter",
            "expected one ASCII character, no quote and no line break",
        )),
    }
}

fn parse(args: &Arguments<'_>) -> Result<Value> {
    let text = args.text("text")?;
    let (header, typed) = (args.flag("header", true)?, args.flag("typed", false)?);
    let mut records = Records::new(text, delimiter(args)?);
    let names: Option<Vec<Value>> = if header {
        let Some(names) = records.next()? else { return vector(Vec::new()) };
        let mut seen = rtfs::Set::new();
        for name in &names {
            if !deep(seen.insert(Value::from(*name)))? {
                let name = rtfs::text::excerpt(name, 80);
                return Err(BuiltinError::content(
                    "text",
                    format_args!("two columns are named {name:?}"),
                ));
            }
        }
        Some(names.into_iter().map(Value::keyword).collect())
    } else {
        None
    };
    let mut rows = Vec::new();
    let mut fields = 0;
    while let Some(record) = records.next()? {
        fields = items_fit(usize::checked_add(
            fields,
            record.len().max(names.as_ref().map_or(0, Vec::len)) + 1,
        ))?;
        let value = |field: &str| if typed { scalar(field) } else { Value::from(field) };
        let Some(names) = &names else {
            rows.push(vector(record.into_iter().map(value).collect())?);
            continue;
        };
        if record.len() > names.len() {
            let (got, row) = (record.len(), rows.len() + 1);
            let problem = format!("row {row} has {got} fields, and the header {}", names.len());
            return Err(BuiltinError::content("text", problem));
        }
        let mut row = Map::new();
        for (i, name) in names.iter().enumerate() {
            let field = record.get(i).map_or(Value::Nil, |field| value(field));
            deep(row.insert(name.clone(), field))?;
        }
        rows.push(row.into());
    }
    vector(rows)
}

/// Iterates over the records of a text.
struct Records<'a> {
    rest: &'a [u8],
    reader: Reader,
    output: Vec<u8>,
    ends: Vec<usize>,
}

impl<'a> Records<'a> {
    fn new(text: &'a str, delimiter: u8) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let reader = ReaderBuilder::new().delimiter(delimiter).build();
        Self { rest: text.as_bytes(), reader, output: vec![0; 1024], ends: vec![0; 64] }
    }

    fn next(&mut self) -> Result<Option<Vec<&str>>> {
        let (mut written, mut ended) = (0, 0);
        loop {
            let (result, read, wrote, ends) =
                self.reader.read_record(self.rest, &mut self.output[written..], &mut self.ends[ended..]);
            self.rest = &self.rest[read..];
            written += wrote;
            ended += ends;
            match result {
                // Another call without input signals the end of the text.
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => self.output.resize(self.output.len() * 2, 0),
                ReadRecordResult::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
                ReadRecordResult::End => return Ok(None),
                ReadRecordResult::Record => break,
            }
        }
        let starts = std::iter::once(0).chain(self.ends[..ended].iter().copied());
        let fields = starts.zip(&self.ends[..ended]).map(|(start, end)| {
            let field = self.output.get(start..*end).unwrap_or_default();
            // Delimiters are ASCII, so no character is cut.
            std::str::from_utf8(field).unwrap_or_default()
        });
        Ok(Some(fields.collect()))
    }
}

fn scalar(field: &str) -> Value {
    let bare = field.trim();
    match bare {
        "" => return Value::Nil,
        "true" | "TRUE" | "True" => return Value::Bool(true),
        "false" | "FALSE" | "False" => return Value::Bool(false),
        _ => {}
    }
    let digits = bare.strip_prefix('-').unwrap_or(bare);
    if digits.starts_with(|c: char| c.is_ascii_digit())
        && let Ok(number) = rtfs::json::value_from_json(bare)
    {
        return number;
    }
    Value::from(field)
}

fn print(args: &Arguments<'_>) -> Result<Value> {
    let (rows, delimiter) = (args.list("rows")?, char::from(delimiter(args)?));
    let columns = columns(args, &rows)?;
    items_fit(columns.len().checked_mul(rows.len()))?;
    let mut out = Table { out: BoundedText::default(), delimiter, begun: false };
    let header = args.flag("header", true)?;
    if header && rows.iter().any(|row| matches!(row, Value::Map(_))) {
        for column in &columns {
            out.field(column)?;
        }
        out.end()?;
    }
    for (i, row) in rows.iter().enumerate() {
        match row {
            Value::Map(map) => {
                for column in &columns {
                    out.value(
                        &format!("rows[{i}].{column}"),
                        field(map, column).unwrap_or(&Value::Nil),
                    )?;
                }
            }
            other => {
                for (j, item) in list(&format!("rows[{i}]"), other)?.iter().enumerate() {
                    out.value(&format!("rows[{i}][{j}]"), item)?;
                }
            }
        }
        out.end()?;
    }
    Ok(out.out.finish())
}

fn columns(args: &Arguments<'_>, rows: &[Value]) -> Result<Vec<String>> {
    if let Some(columns) = args.given("columns") {
        let columns = list("columns", columns)?;
        let named = columns.iter().enumerate();
        return named.map(|(i, name)| text(&format!("columns[{i}]"), name).map(str::to_owned)).collect();
    }
    let mut seen = rtfs::Set::new();
    let mut columns = Vec::new();
    for row in rows {
        let Value::Map(map) = row else { continue };
        for (key, _) in map.iter() {
            let name = name_of(key).map_or_else(|| key.to_string(), str::to_owned);
            if deep(seen.insert(Value::from(name.as_str())))? {
                columns.push(name);
            }
        }
    }
    Ok(columns)
}

struct Table {
    out: BoundedText,
    delimiter: char,
    begun: bool,
}

impl Table {
    fn value(&mut self, at: &str, value: &Value) -> Result<()> {
        match value {
            Value::Nil => self.field(""),
            Value::Str(text) => self.field(text.as_str()),
            Value::Keyword(keyword) => self.field(keyword.name()),
            Value::Map(_) | Value::Vector(_) | Value::List(_) | Value::Set(_) => {
                let json = rtfs::json::value_to_json(value);
                self.field(&json.map_err(|error| BuiltinError::content(at, error))?)
            }
            value => self.field(&value.to_string()),
        }
    }

    fn field(&mut self, field: &str) -> Result<()> {
        if self.begun {
            self.out.push_char(self.delimiter)?;
        }
        self.begun = true;
        let special = |c: char| c == self.delimiter || matches!(c, '"' | '\n' | '\r');
        if field.contains(special) || field.starts_with([' ', '\u{feff}']) || field.ends_with(' ') {
            self.out.push_char('"')?;
            for (i, part) in field.split('"').enumerate() {
                if i > 0 {
                    self.out.push("\"\"")?;
                }
                self.out.push(part)?;
            }
            self.out.push_char('"')
        } else {
            self.out.push(field)
        }
    }

    fn end(&mut self) -> Result<()> {
        self.begun = false;
        self.out.push_char('\n')
    }
}
