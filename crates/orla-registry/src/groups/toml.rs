//! TOML text ⇄ values.

use rtfs::{Map, Value};
use toml::{Table, Value as Toml};

use crate::arguments::{Arguments, name_of};
use crate::builtin::{Builtin, example, required};
use crate::error::BuiltinError;
use crate::limits::{BoundedText, deep, vector};
use crate::schema::{OBJECT, TEXT};

type Result<T> = std::result::Result<T, BuiltinError>;

/// The maximum nesting of TOML; its parser has a similar limit.
const MAX_NESTING: u16 = 80;

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "toml.parse",
        title: "Parse TOML",
        description: "The object that a TOML text describes. Dates and times become texts (RFC 3339).",
        parameters: &[required("text", TEXT, "The TOML text.")],
        output: OBJECT,
        examples: &[example(
            r#"{"text":"title = \"x\"\n[owner]\nborn = 1979-05-27\n[[p]]\nn = 1\n[[p]]\nn = 2\n"}"#,
            r#"{"title":"x","owner":{"born":"1979-05-27"},"p":[{"n":1},{"n":2}]}"#,
        )],
        run: parse,
    },
    Builtin {
        name: "toml.print",
        title: "Print TOML",
        description: "An object as TOML text. TOML has no null: keys with null are left out, and null in a list is an \
                      error. Integers have 64 bits.",
        parameters: &[required("value", OBJECT, "The object.")],
        output: TEXT,
        examples: &[example(
            r#"{"value":{"a":{"b":[1,2.5]},"c":"x"}}"#,
            r#""c = \"x\"\n\n[a]\nb = [1, 2.5]\n""#,
        )],
        run: print,
    },
];

fn parse(args: &Arguments<'_>) -> Result<Value> {
    let text = args.text("text")?;
    let table = text.parse::<Table>().map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        BuiltinError::content("text", format_args!("{} (line {line}, column {column})", error.message()))
    })?;
    from_toml(&Toml::Table(table))
}

fn from_toml(value: &Toml) -> Result<Value> {
    Ok(match value {
        Toml::String(text) => Value::from(text.as_str()),
        Toml::Integer(integer) => Value::Int(*integer),
        Toml::Float(float) if float.is_finite() => Value::Float(*float),
        Toml::Float(float) => {
            return Err(BuiltinError::content("text", format_args!("{float} is no finite number")));
        }
        Toml::Boolean(boolean) => Value::Bool(*boolean),
        Toml::Datetime(datetime) => {
            let mut datetime = *datetime;
            // TOML 1.1 allows omitted seconds; RFC 3339 does not.
            if let Some(time) = &mut datetime.time {
                time.second.get_or_insert(0);
            }
            Value::from(datetime.to_string())
        }
        Toml::Array(items) => vector(items.iter().map(from_toml).collect::<Result<_>>()?)?,
        Toml::Table(table) => {
            let mut map = Map::new();
            for (key, value) in table {
                deep(map.insert(Value::keyword(key.as_str()), from_toml(value)?))?;
            }
            map.into()
        }
    })
}

fn print(args: &Arguments<'_>) -> Result<Value> {
    let map = args.map("value")?;
    if Value::Map(map.clone()).depth() > MAX_NESTING {
        return Err(BuiltinError::limit("the nesting", format_args!("{MAX_NESTING} levels")));
    }
    let Some(Toml::Table(table)) = to_toml("value", &map.clone().into())? else {
        return Err(BuiltinError::content("value", "expected an object"));
    };
    let text = toml::to_string(&table).map_err(|error| BuiltinError::content("value", error))?;
    let mut out = BoundedText::default();
    out.push(&text)?;
    Ok(out.finish())
}

/// Converts a value; `None` for null.
fn to_toml(at: &str, value: &Value) -> Result<Option<Toml>> {
    let items = |items: &[Value]| -> Result<Option<Toml>> {
        let mut array = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let at = format!("{at}[{i}]");
            array.push(
                to_toml(&at, item)?.ok_or_else(|| BuiltinError::content(&*at, "TOML has no null"))?,
            );
        }
        Ok(Some(Toml::Array(array)))
    };
    match value {
        Value::Nil => Ok(None),
        Value::Bool(boolean) => Ok(Some(Toml::Boolean(*boolean))),
        Value::Int(integer) => Ok(Some(Toml::Integer(*integer))),
        Value::BigInt(_) => Err(BuiltinError::content(at, "an integer of TOML has 64 bits")),
        Value::Float(float) => Ok(Some(Toml::Float(*float))),
        Value::Str(text) => Ok(Some(Toml::String(text.as_str().to_owned()))),
        Value::Keyword(_) | Value::Symbol(_) | Value::Uuid(_) | Value::Instant(_) => {
            let text = name_of(value).map_or_else(|| value.to_string(), str::to_owned);
            Ok(Some(Toml::String(text)))
        }
        Value::Vector(vector) => items(vector.items()),
        Value::List(list) => items(list.items()),
        Value::Set(set) => items(&set.iter().cloned().collect::<Vec<_>>()),
        Value::Map(map) => {
            let mut table = Table::new();
            for (key, value) in map.iter() {
                let name = name_of(key).map_or_else(|| key.to_string(), str::to_owned);
                let at = format!("{at}.{name}");
                if let Some(value) = to_toml(&at, value)?
                    && table.insert(name, value).is_some()
                {
                    return Err(BuiltinError::content(at, "two keys become this one"));
                }
            }
            Ok(Some(Toml::Table(table)))
        }
        other => Err(BuiltinError::content(at, format_args!("TOML has no {}", other.type_name()))),
    }
}

#[cfg(test)]
mod tests {
    use rtfs::json::value_to_json;

    use crate::CapabilityRegistry;

    #[test]
    fn dates_and_times_are_those_of_rfc_3339() {
        let cases = [
            ("07:32", "07:32:00"),
            ("07:32:05.5", "07:32:05.5"),
            ("1979-05-27 07:32", "1979-05-27T07:32:00"),
            ("1979-05-27T07:32Z", "1979-05-27T07:32:00Z"),
            ("1979-05-27 07:32-07:00", "1979-05-27T07:32:00-07:00"),
            ("1979-05-27", "1979-05-27"),
        ];
        for (written, expected) in cases {
            let mut input = rtfs::Map::new();
            input.insert(rtfs::Value::keyword("text"), format!("t = {written}").into()).unwrap();
            let value = CapabilityRegistry.get("toml.parse").unwrap().call(&input.into()).unwrap();
            assert_eq!(value_to_json(&value).unwrap(), format!(r#"{{"t":"{expected}"}}"#));
        }
    }
}
