//! JSON Pointer (RFC 6901), JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7396) on values.

use rtfs::{Map, Value};

use crate::arguments::{Arguments, name_of};
use crate::error::BuiltinError;
use crate::groups::{field, record};
use crate::limits::{Budget, deep, vector};

type Result<T> = std::result::Result<T, BuiltinError>;

/// The maximum number of list items that a whole patch may move: each change copies the list.
const MAX_MOVED: usize = 50_000_000;

pub(super) fn get(args: &Arguments<'_>) -> Result<Value> {
    let steps = pointer("pointer", args.text("pointer")?)?;
    let found = steps.iter().try_fold(args.value("value")?, |here, step| child(here, step));
    Ok(found.or(args.given("default")).cloned().unwrap_or_default())
}

/// Returns the steps of a pointer.
fn pointer(argument: &str, text: &str) -> Result<Vec<String>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let Some(steps) = text.strip_prefix('/') else {
        return Err(BuiltinError::content(argument, "a pointer is empty or begins with /"));
    };
    let step = |step: &str| {
        let mut escapes = step.split('~').skip(1);
        match escapes.all(|after| after.starts_with(['0', '1'])) {
            true => Ok(step.replace("~1", "/").replace("~0", "~")),
            false => Err(BuiltinError::content(argument, "~ is followed by 0 or 1")),
        }
    };
    steps.split('/').map(step).collect()
}

fn items(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Vector(vector) => Some(vector.items()),
        Value::List(list) => Some(list.items()),
        _ => None,
    }
}

/// Parses an index in the standard's form: no sign, no leading zeros.
fn index(step: &str) -> Option<usize> {
    let plain = step == "0" || !step.starts_with('0');
    let digits = !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit());
    if plain && digits { step.parse().ok() } else { None }
}

fn child<'a>(value: &'a Value, step: &str) -> Option<&'a Value> {
    match value {
        Value::Map(map) => field(map, step),
        other => items(other)?.get(index(step)?),
    }
}

/// Returns the key of this name in the map's own kind, else a keyword.
fn key_in(map: &Map, name: &str) -> Value {
    let keyword = Value::keyword(name);
    let text = Value::from(name);
    if !map.contains_key(&keyword) && map.contains_key(&text) { text } else { keyword }
}

/// The change at the target of a pointer.
enum Change {
    Add(Value),
    Replace(Value),
    Remove,
}

struct Patching {
    moved: usize,
    copied: Budget,
    argument: String,
}

impl Patching {
    fn problem(&self, problem: impl std::fmt::Display) -> BuiltinError {
        BuiltinError::content(self.argument.as_str(), problem)
    }

    fn nothing_there(&self, path: &str) -> BuiltinError {
        self.problem(format_args!("there is nothing at {}", rtfs::text::excerpt(path, 200)))
    }

    /// Returns the value with a change at one place, and the previous value there.
    fn change(
        &mut self,
        value: Value,
        steps: &[String],
        path: &str,
        change: Change,
    ) -> Result<(Value, Option<Value>)> {
        let Some((step, rest)) = steps.split_first() else {
            return match change {
                Change::Add(new) | Change::Replace(new) => Ok((new, Some(value))),
                Change::Remove => Ok((Value::Nil, Some(value))),
            };
        };
        match value {
            Value::Map(mut map) => {
                let key = key_in(&map, step);
                let old = if rest.is_empty() {
                    match change {
                        Change::Replace(_) | Change::Remove if !map.contains_key(&key) => {
                            return Err(self.nothing_there(path));
                        }
                        Change::Remove => map.remove(&key),
                        Change::Add(new) | Change::Replace(new) => deep(map.insert(key, new))?,
                    }
                } else {
                    // Nil keeps the place, so that the part can be changed without a copy.
                    let inner = map.contains_key(&key).then(|| map.insert(key.clone(), Value::Nil));
                    let Some(inner) = inner.transpose().map_err(|_| self.nothing_there(path))?.flatten()
                    else {
                        return Err(self.nothing_there(path));
                    };
                    let (inner, old) = self.change(inner, rest, path, change)?;
                    deep(map.insert(key, inner))?;
                    old
                };
                Ok((map.into(), old))
            }
            other => {
                let Some(list) = items(&other) else { return Err(self.nothing_there(path)) };
                self.moved += list.len();
                if self.moved > MAX_MOVED {
                    return Err(BuiltinError::limit(
                        "the work",
                        format_args!("{MAX_MOVED} moved items"),
                    ));
                }
                let mut list = list.to_vec();
                drop(other);
                let appends = step == "-" && rest.is_empty() && matches!(change, Change::Add(_));
                let at = if appends { Some(list.len()) } else { index(step) };
                let at = at.ok_or_else(|| self.nothing_there(path))?;
                let old = match (rest.is_empty(), change) {
                    (true, Change::Add(new)) if at <= list.len() => {
                        list.insert(at, new);
                        None
                    }
                    (true, Change::Replace(new)) if at < list.len() => {
                        Some(std::mem::replace(&mut list[at], new))
                    }
                    (true, Change::Remove) if at < list.len() => Some(list.remove(at)),
                    (false, change) if at < list.len() => {
                        let inner = std::mem::take(&mut list[at]);
                        let (inner, old) = self.change(inner, rest, path, change)?;
                        list[at] = inner;
                        old
                    }
                    _ => return Err(self.nothing_there(path)),
                };
                Ok((vector(list)?, old))
            }
        }
    }

    fn apply(&mut self, value: Value, operation: &Map) -> Result<Value> {
        let at = self.argument.clone();
        let text = |name: &str| -> Result<&str> {
            let expected = || BuiltinError::missing(format!("{at}.{name}"), "text (required)");
            crate::arguments::text(&format!("{at}.{name}"), field(operation, name).ok_or_else(expected)?)
        };
        let given = || {
            let value = field(operation, "value").cloned();
            value.ok_or_else(|| BuiltinError::missing(format!("{at}.value"), "a value (required)"))
        };
        let path = text("path")?;
        let steps = pointer(&format!("{at}.path"), path)?;
        let from = || -> Result<(&str, Vec<String>)> {
            let from = text("from")?;
            Ok((from, pointer(&format!("{at}.from"), from)?))
        };
        let find = |value: &Value, steps: &[String]| -> Option<Value> {
            steps.iter().try_fold(value, |here, step| child(here, step)).cloned()
        };
        match text("op")? {
            "add" => Ok(self.change(value, &steps, path, Change::Add(given()?))?.0),
            "replace" => Ok(self.change(value, &steps, path, Change::Replace(given()?))?.0),
            "remove" => Ok(self.change(value, &steps, path, Change::Remove)?.0),
            "move" => {
                let (from_path, from) = from()?;
                if steps.len() > from.len() && steps.starts_with(&from) {
                    return Err(self.problem("a value cannot be moved into itself"));
                }
                let (rest, moved) = self.change(value, &from, from_path, Change::Remove)?;
                let moved = moved.ok_or_else(|| self.nothing_there(from_path))?;
                Ok(self.change(rest, &steps, path, Change::Add(moved))?.0)
            }
            "copy" => {
                let (from_path, from) = from()?;
                let copy = find(&value, &from).ok_or_else(|| self.nothing_there(from_path))?;
                self.copied.weigh(&copy)?;
                Ok(self.change(value, &steps, path, Change::Add(copy))?.0)
            }
            "test" => {
                let found = find(&value, &steps).ok_or_else(|| self.nothing_there(path))?;
                self.copied.weigh(&found)?;
                if equal(&found, &given()?) {
                    Ok(value)
                } else {
                    let got = crate::error::shown(&found);
                    Err(self.problem(format_args!(
                        "the test failed: {} is {got}",
                        rtfs::text::excerpt(path, 200)
                    )))
                }
            }
            other => {
                Err(self
                    .problem(format_args!("there is no operation {}", rtfs::text::excerpt(other, 40))))
            }
        }
    }
}

pub(super) fn apply(args: &Arguments<'_>) -> Result<Value> {
    let mut value = args.value("value")?.clone();
    let mut patching = Patching { moved: 0, copied: Budget::new(), argument: String::new() };
    for (i, operation) in args.list("patch")?.iter().enumerate() {
        patching.argument = format!("patch[{i}]");
        let Value::Map(operation) = operation else {
            return Err(BuiltinError::argument(format!("patch[{i}]"), "an object", operation));
        };
        value = patching.apply(value, operation)?;
    }
    Ok(value)
}

/// Compares as JSON: numbers by their value.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (
            Value::Int(_) | Value::BigInt(_) | Value::Float(_),
            Value::Int(_) | Value::BigInt(_) | Value::Float(_),
        ) => a.compare(b).is_eq(),
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, value)| {
                    let other = b.get(key).or_else(|| field(b, name_of(key)?));
                    other.is_some_and(|other| equal(value, other))
                })
        }
        _ => match (items(a), items(b)) {
            (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
            _ => a == b,
        },
    }
}

pub(super) fn merge(value: Value, patch: &Value) -> Result<Value> {
    let Value::Map(patch) = patch else { return Ok(patch.clone()) };
    let mut map = match value {
        Value::Map(map) => map,
        _ => Map::new(),
    };
    for (key, change) in patch.iter() {
        let key = name_of(key).map_or_else(|| key.clone(), |name| key_in(&map, name));
        if matches!(change, Value::Nil) {
            map.remove(&key);
            continue;
        }
        let old = map.get(&key).cloned().unwrap_or_default();
        deep(map.insert(key, merge(old, change)?))?;
    }
    Ok(map.into())
}

pub(super) fn diff(args: &Arguments<'_>) -> Result<Value> {
    let mut diff = Diff {
        path: String::new(),
        operations: Vec::new(),
        compared: Budget::new(),
        written: Budget::new(),
    };
    diff.compare(args.value("before")?, args.value("after")?)?;
    vector(diff.operations)
}

struct Diff {
    path: String,
    operations: Vec<Value>,
    /// The remaining comparisons for finding the common ends of two lists.
    compared: Budget,
    written: Budget,
}

impl Diff {
    fn compare(&mut self, before: &Value, after: &Value) -> Result<()> {
        match (before, after) {
            (Value::Map(before), Value::Map(after)) => self.maps(before, after),
            _ => match (items(before), items(after)) {
                (Some(before), Some(after)) => self.lists(before, after),
                _ if before == after => Ok(()),
                _ => self.operation("replace", Some(after)),
            },
        }
    }

    fn maps(&mut self, before: &Map, after: &Map) -> Result<()> {
        for (key, _) in before.iter().filter(|(key, _)| !after.contains_key(key)) {
            self.at(&step_of(key), |diff| diff.operation("remove", None))?;
        }
        for (key, value) in after.iter() {
            self.at(&step_of(key), |diff| match before.get(key) {
                Some(old) => diff.compare(old, value),
                None => diff.operation("add", Some(value)),
            })?;
        }
        Ok(())
    }

    fn lists(&mut self, before: &[Value], after: &[Value]) -> Result<()> {
        let (mut start, mut end) = (0, 0);
        if before.len() != after.len() {
            let shorter = before.len().min(after.len());
            while start < shorter && self.same(&before[start], &after[start]) {
                start += 1;
            }
            while end < shorter - start
                && self.same(&before[before.len() - 1 - end], &after[after.len() - 1 - end])
            {
                end += 1;
            }
        }
        let (old, new) = (&before[start..before.len() - end], &after[start..after.len() - end]);
        for (i, (old, new)) in old.iter().zip(new).enumerate() {
            self.at(&(start + i).to_string(), |diff| diff.compare(old, new))?;
        }
        for i in (new.len()..old.len()).rev() {
            self.at(&(start + i).to_string(), |diff| diff.operation("remove", None))?;
        }
        for (i, value) in new.iter().enumerate().skip(old.len()) {
            self.at(&(start + i).to_string(), |diff| diff.operation("add", Some(value)))?;
        }
        Ok(())
    }

    /// Returns whether two values are equal, within the budget. Beyond it a patch is longer than
    /// necessary.
    fn same(&mut self, a: &Value, b: &Value) -> bool {
        self.compared.weigh(a).is_ok() && a == b
    }

    fn at(&mut self, step: &str, then: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let outer = self.path.len();
        self.path.push('/');
        self.path.push_str(&step.replace('~', "~0").replace('/', "~1"));
        then(self)?;
        self.path.truncate(outer);
        Ok(())
    }

    fn operation(&mut self, op: &str, value: Option<&Value>) -> Result<()> {
        self.written.items(4)?;
        self.written.text(self.path.len())?;
        let (op, path) = (("op", Value::from(op)), ("path", Value::from(self.path.as_str())));
        self.operations.push(match value {
            None => record([op, path])?,
            Some(value) => record([op, path, ("value", value.clone())])?,
        });
        Ok(())
    }
}

fn step_of(key: &Value) -> String {
    name_of(key).map_or_else(|| key.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use rtfs::json::{value_from_json, value_to_json};

    use crate::CapabilityRegistry;

    fn call(name: &str, input: &str) -> String {
        match CapabilityRegistry.get(name).unwrap().call(&value_from_json(input).unwrap()) {
            Ok(value) => value_to_json(&value).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn patches_do_what_the_standard_says() {
        // The examples of RFC 6902, appendix A.
        let cases = [
            (
                r#"{"foo":"bar"}"#,
                r#"[{"op":"add","path":"/baz","value":"qux"}]"#,
                r#"{"foo":"bar","baz":"qux"}"#,
            ),
            (
                r#"{"foo":["bar","baz"]}"#,
                r#"[{"op":"add","path":"/foo/1","value":"qux"}]"#,
                r#"{"foo":["bar","qux","baz"]}"#,
            ),
            (r#"{"baz":"qux","foo":"bar"}"#, r#"[{"op":"remove","path":"/baz"}]"#, r#"{"foo":"bar"}"#),
            (
                r#"{"foo":["bar","qux","baz"]}"#,
                r#"[{"op":"remove","path":"/foo/1"}]"#,
                r#"{"foo":["bar","baz"]}"#,
            ),
            (
                r#"{"baz":"qux","foo":"bar"}"#,
                r#"[{"op":"replace","path":"/baz","value":"boo"}]"#,
                r#"{"baz":"boo","foo":"bar"}"#,
            ),
            (
                r#"{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}"#,
                r#"[{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]"#,
                r#"{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}"#,
            ),
            (
                r#"{"foo":["all","grass","cows","eat"]}"#,
                r#"[{"op":"move","from":"/foo/1","path":"/foo/3"}]"#,
                r#"{"foo":["all","cows","eat","grass"]}"#,
            ),
            (
                r#"{"baz":"qux"}"#,
                r#"[{"op":"test","path":"/baz","value":"bar"}]"#,
                r#"patch[0]: the test failed: /baz is "qux""#,
            ),
            (
                r#"{"foo":"bar"}"#,
                r#"[{"op":"add","path":"/baz/bat","value":"qux"}]"#,
                "patch[0]: there is nothing at /baz/bat",
            ),
            (
                r#"{"foo":["bar"]}"#,
                r#"[{"op":"add","path":"/foo/-","value":["abc","def"]}]"#,
                r#"{"foo":["bar",["abc","def"]]}"#,
            ),
            (
                r#"{"foo":["bar"]}"#,
                r#"[{"op":"add","path":"/foo/01","value":1}]"#,
                "patch[0]: there is nothing at /foo/01",
            ),
            (
                r#"{"/":9,"~1":10}"#,
                r#"[{"op":"test","path":"/~01","value":10.0}]"#,
                r#"{"/":9,"~1":10}"#,
            ),
            (
                r#"{"a":{"b":1}}"#,
                r#"[{"op":"move","from":"/a","path":"/a/b"}]"#,
                "patch[0]: a value cannot be moved into itself",
            ),
            (r#"1"#, r#"[{"op":"replace","path":"","value":2}]"#, "2"),
            (
                r#"{}"#,
                r#"[{"op":"add","path":"a","value":2}]"#,
                "patch[0].path: a pointer is empty or begins with /",
            ),
        ];
        for (value, patch, expected) in cases {
            assert_eq!(
                call("json.patch", &format!(r#"{{"value":{value},"patch":{patch}}}"#)),
                expected,
                "{patch}"
            );
        }
    }

    #[test]
    fn merge_patches_do_what_the_standard_says() {
        // From RFC 7396, appendix A.
        let cases = [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"["a","b"]"#, r#"["c"]"#, r#"["c"]"#),
            (r#"{"a":"foo"}"#, "null", "null"),
            ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ];
        for (value, patch, expected) in cases {
            assert_eq!(
                call("json.merge_patch", &format!(r#"{{"value":{value},"patch":{patch}}}"#)),
                expected,
                "{patch}"
            );
        }
    }

    #[test]
    fn copies_cannot_explode() {
        let copy = r#"{"op":"copy","from":"","path":"/a"}"#;
        let patch = vec![copy; 200].join(",");
        let result = call("json.patch", &format!(r#"{{"value":{{"x":[1,2]}},"patch":[{patch}]}}"#));
        assert!(result.len() < 1_000_000, "{}", &result[..100]);
        let double =
            (0..64).map(|_| r#"{"op":"copy","from":"/0","path":"/0/-"}"#).collect::<Vec<_>>().join(",");
        let result = call("json.patch", &format!(r#"{{"value":[[1,2,3]],"patch":[{double}]}}"#));
        assert_eq!(result, "the work would be more than 1000000 values");
    }
}
