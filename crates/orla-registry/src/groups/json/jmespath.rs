//! JMESPath: [`syntax`] parses an expression into a tree, this module evaluates it, and [`functions`]
//! contains the standard functions.
//!
//! Values share their parts, so an expression can create a value that is small in memory and immense to
//! traverse. Every function that traverses a value therefore weighs it first.

mod functions;
mod syntax;

use rtfs::{Map, Value};

use crate::arguments::Arguments;
use crate::error::BuiltinError;
use crate::groups::field;
use crate::limits::{Budget, deep, vector};

use syntax::{Comparator, Tree};

type Result<T> = std::result::Result<T, BuiltinError>;

pub(super) fn query(args: &Arguments<'_>) -> Result<Value> {
    let tree = syntax::parse(args.text("expression")?)?;
    let value = Evaluation { budget: Budget::new() }.evaluate(&tree, args.value("value")?)?;
    Budget::new().weigh(&value)?;
    Ok(value)
}

fn problem(problem: impl std::fmt::Display) -> BuiltinError {
    BuiltinError::content("expression", problem)
}

struct Evaluation {
    budget: Budget,
}

impl Evaluation {
    /// The recursion is as deep as the tree, whose depth the syntax limits.
    fn evaluate(&mut self, tree: &Tree, value: &Value) -> Result<Value> {
        self.budget.items(1)?;
        match tree {
            Tree::Current => Ok(value.clone()),
            Tree::Literal(literal) => Ok(literal.clone()),
            Tree::Field(name) => Ok(match value {
                Value::Map(map) => field(map, name).cloned().unwrap_or_default(),
                _ => Value::Nil,
            }),
            Tree::Index(index) => Ok(at(value, *index)),
            Tree::Slice { start, end, step } => self.slice(value, *start, *end, *step),
            Tree::Then(first, then) => {
                let value = self.evaluate(first, value)?;
                self.evaluate(then, &value)
            }
            Tree::Flatten(list) => {
                let list = self.evaluate(list, value)?;
                self.flatten(&list)
            }
            Tree::Project(list, then) => {
                let list = self.evaluate(list, value)?;
                self.project(items(&list), then)
            }
            Tree::ProjectValues(map, then) => {
                let map = self.evaluate(map, value)?;
                let Value::Map(map) = &map else { return Ok(Value::Nil) };
                let values: Vec<Value> = map.iter().map(|(_, value)| value.clone()).collect();
                self.project(Some(&values), then)
            }
            Tree::Filter { list, condition, then } => self.filter(list, condition, then, value),
            Tree::List(trees) if !matches!(value, Value::Nil) => {
                vector(trees.iter().map(|tree| self.evaluate(tree, value)).collect::<Result<_>>()?)
            }
            Tree::Object(entries) if !matches!(value, Value::Nil) => self.object(entries, value),
            Tree::List(_) | Tree::Object(_) => Ok(Value::Nil),
            Tree::Or(left, right) => {
                let left = self.evaluate(left, value)?;
                if is_true(&left) { Ok(left) } else { self.evaluate(right, value) }
            }
            Tree::And(left, right) => {
                let left = self.evaluate(left, value)?;
                if is_true(&left) { self.evaluate(right, value) } else { Ok(left) }
            }
            Tree::Not(tree) => Ok(Value::Bool(!is_true(&self.evaluate(tree, value)?))),
            Tree::Compare(left, comparator, right) => {
                let (left, right) = (self.evaluate(left, value)?, self.evaluate(right, value)?);
                self.compare(&left, *comparator, &right)
            }
            Tree::Call(name, arguments) => functions::call(self, name, arguments, value),
            Tree::Reference(_) => Err(problem("`&` makes sense as the argument of a function only")),
        }
    }

    fn slice(
        &mut self,
        value: &Value,
        start: Option<i64>,
        end: Option<i64>,
        step: i64,
    ) -> Result<Value> {
        let Some(items) = items(value) else { return Ok(Value::Nil) };
        self.budget.items(items.len())?;
        let places = super::path::slice(start, end, step, items.len());
        vector(places.into_iter().map(|at| items[at].clone()).collect())
    }

    fn flatten(&mut self, list: &Value) -> Result<Value> {
        let Some(list) = items(list) else { return Ok(Value::Nil) };
        let mut flat = Vec::new();
        for item in list {
            match items(item) {
                Some(inner) => {
                    self.budget.items(inner.len())?;
                    flat.extend_from_slice(inner);
                }
                None => flat.push(item.clone()),
            }
        }
        self.budget.items(list.len())?;
        vector(flat)
    }

    /// Returns the results for each item, without nulls.
    fn project(&mut self, list: Option<&[Value]>, then: &Tree) -> Result<Value> {
        let Some(list) = list else { return Ok(Value::Nil) };
        let mut results = Vec::new();
        for item in list {
            let result = self.evaluate(then, item)?;
            if !matches!(result, Value::Nil) {
                results.push(result);
            }
        }
        vector(results)
    }

    fn filter(&mut self, list: &Tree, condition: &Tree, then: &Tree, value: &Value) -> Result<Value> {
        let list = self.evaluate(list, value)?;
        let Some(list) = items(&list) else { return Ok(Value::Nil) };
        let mut kept = Vec::new();
        for item in list {
            if is_true(&self.evaluate(condition, item)?) {
                kept.push(item.clone());
            }
        }
        self.project(Some(&kept), then)
    }

    fn object(&mut self, entries: &[(String, Tree)], value: &Value) -> Result<Value> {
        let mut map = Map::new();
        for (name, tree) in entries {
            let value = self.evaluate(tree, value)?;
            deep(map.insert(Value::keyword(name.as_str()), value))?;
        }
        Ok(map.into())
    }

    fn compare(&mut self, left: &Value, comparator: Comparator, right: &Value) -> Result<Value> {
        let order = || (is_number(left) && is_number(right)).then(|| left.compare(right));
        let ordered = |holds: fn(std::cmp::Ordering) -> bool| {
            order().map_or(Value::Nil, |order| Value::Bool(holds(order)))
        };
        Ok(match comparator {
            Comparator::Equal => Value::Bool(self.equal(left, right)?),
            Comparator::Different => Value::Bool(!self.equal(left, right)?),
            Comparator::Less => ordered(std::cmp::Ordering::is_lt),
            Comparator::AtMost => ordered(std::cmp::Ordering::is_le),
            Comparator::Greater => ordered(std::cmp::Ordering::is_gt),
            Comparator::AtLeast => ordered(std::cmp::Ordering::is_ge),
        })
    }

    fn equal(&mut self, left: &Value, right: &Value) -> Result<bool> {
        self.budget.weigh(left)?;
        Ok(super::patch::equal(left, right))
    }
}

fn items(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Vector(vector) => Some(vector.items()),
        Value::List(list) => Some(list.items()),
        _ => None,
    }
}

fn at(value: &Value, index: i64) -> Value {
    let Some(items) = items(value) else { return Value::Nil };
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let index = usize::try_from(if index < 0 { length.saturating_add(index) } else { index });
    index.ok().and_then(|index| items.get(index)).cloned().unwrap_or_default()
}

/// Returns whether a value is neither null, false, nor empty.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Nil | Value::Bool(false) => false,
        Value::Str(text) => !text.as_str().is_empty(),
        Value::Map(map) => !map.is_empty(),
        other => items(other).is_none_or(|items| !items.is_empty()),
    }
}

fn is_number(value: &Value) -> bool {
    matches!(value, Value::Int(_) | Value::BigInt(_) | Value::Float(_))
}

#[cfg(test)]
mod tests {
    use rtfs::json::{value_from_json, value_to_json};

    use crate::CapabilityRegistry;

    fn run(value: &str, expression: &str) -> String {
        let mut input = rtfs::Map::new();
        input.insert(rtfs::Value::keyword("value"), value_from_json(value).unwrap()).unwrap();
        input.insert(rtfs::Value::keyword("expression"), expression.into()).unwrap();
        match CapabilityRegistry.get("json.jmespath").unwrap().call(&input.into()) {
            Ok(value) => value_to_json(&value).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn does_what_the_specification_says() {
        let people = r#"{"people":[{"name":"a","age":30,"tags":["x","y"]},{"name":"b","age":50,"tags":[]},
            {"name":"c","age":40}],"ops":{"f":{"n":1},"g":{"n":2},"h":{"o":3}},"nested":[[1,2],[3,[4]],5],"s":"text",
            "foo-bar":1,"empty":[]}"#;
        let cases = [
            ("people[0].name", r#""a""#),
            ("people[-1].age", "40"),
            ("people[9].age", "null"),
            ("people[*].name", r#"["a","b","c"]"#),
            ("people[:2].name", r#"["a","b"]"#),
            ("people[::-1].name", r#"["c","b","a"]"#),
            ("people[*].tags[0]", r#"["x"]"#),
            ("people[].tags[]", r#"["x","y"]"#),
            ("ops.*.n", "[1,2]"),
            ("nested[]", "[1,2,3,[4],5]"),
            ("nested[][]", "[1,2,3,4,5]"),
            ("people[?age > `35`].name", r#"["b","c"]"#),
            ("people[?name == 'a' || age == `50`].[name, age]", r#"[["a",30],["b",50]]"#),
            ("people[?!tags].name", r#"["b","c"]"#),
            ("people[?tags && age < `40`] | [0].name", r#""a""#),
            ("people[*].{n: name, a: age} | [1]", r#"{"n":"b","a":50}"#),
            ("\"foo-bar\"", "1"),
            ("none.of.this", "null"),
            ("none || s", r#""text""#),
            ("s && `1`", "1"),
            ("!s", "false"),
            ("@.s", r#""text""#),
            ("people[*].name | [0]", r#""a""#),
            (
                "`[1, {\"a\": \"`x`\"}]`",
                "expression: the literal is not JSON: the string does not end (at character 1)",
            ),
            ("`{\"a\": \"\\`\"}`", r#"{"a":"`"}"#),
            ("'it\\'s'", r#""it's""#),
            ("length(people)", "3"),
            ("length(s)", "4"),
            ("max_by(people, &age).name", r#""b""#),
            ("min_by(people, &age).name", r#""a""#),
            ("sort_by(people, &age)[*].name", r#"["a","c","b"]"#),
            ("avg(people[*].age)", "40.0"),
            ("sum(people[*].age)", "120"),
            ("max(people[*].age)", "50"),
            ("join(', ', people[*].name)", r#""a, b, c""#),
            ("contains(s, 'ex')", "true"),
            ("contains(people[*].name, 'z')", "false"),
            ("keys(ops)", r#"["f","g","h"]"#),
            ("values(ops)[0]", r#"{"n":1}"#),
            ("map(&age, people)", "[30,50,40]"),
            ("merge(ops.f, `{\"m\": 1}`)", r#"{"n":1,"m":1}"#),
            ("not_null(none, s)", r#""text""#),
            ("reverse('abc')", r#""cba""#),
            ("to_array('x')", r#"["x"]"#),
            ("to_number('1.5')", "1.5"),
            ("to_string(`[1]`)", r#""[1]""#),
            ("type(`null`)", r#""null""#),
            ("starts_with(s, 'te')", "true"),
            ("floor(`1.7`)", "1"),
            ("abs(`-3`)", "3"),
            ("empty[*].x", "[]"),
            ("ops.f.n < s", "null"),
            ("sort(`[3, \"a\"]`)", "expression: sort: expected all numbers or all texts"),
            ("length(`1`)", "expression: length: expected a text, a list or an object, got 1"),
            ("nothing(@)", "expression: there is no function nothing"),
            ("abs()", "expression: abs takes 1 argument(s), got 0"),
            ("people[*", "expression: expected `]`, got the end (at character 9)"),
            ("a b", "expression: expected an operator or the end, got \"b\" (at character 3)"),
            ("&a", "expression: `&` makes sense as the argument of a function only"),
            ("", "expression: expected an expression, got the end (at character 1)"),
        ];
        for (expression, expected) in cases {
            assert_eq!(run(people, expression), expected, "{expression}");
        }
    }

    #[test]
    fn what_is_made_and_walked_is_bounded() {
        let doubling = format!("{} | to_string(@)", vec!["[@, @]"; 60].join(" | "));
        assert!(run("[1]", &doubling).contains("would be more than"), "{}", run("[1]", &doubling));
        let deep = format!("{}a{}", "(".repeat(5_000), ")".repeat(5_000));
        assert!(run("{}", &deep).contains("would be more than"));
        let long = vec!["a"; 2_000].join(".");
        assert!(run("{}", &long).contains("would be more than"));
    }
}
