//! Arithmetic expressions in the usual notation, by precedence climbing.
//!
//! From loose to tight: `+ -`, then `* / // %`, then a sign, then `^` (right-associative), then `!`.

use rtfs::{Map, Value};

use crate::arguments::Arguments;
use crate::error::BuiltinError;
use crate::limits::bits_fit;
use crate::number::{Number, Rounding};

type Result<T> = std::result::Result<T, BuiltinError>;

/// The maximum length of an expression, in bytes.
const MAX_LENGTH: usize = 10_000;
/// The maximum nesting of parentheses, signs and powers.
const MAX_NESTING: usize = 100;

pub(super) fn evaluate(args: &Arguments<'_>) -> Result<Value> {
    let text = args.text("expression")?;
    if text.len() > MAX_LENGTH {
        return Err(BuiltinError::limit("the expression", format_args!("{MAX_LENGTH} bytes")));
    }
    let variables = &args.numbers_by_name("variables")?;
    let mut reader = Reader { text, at: 0, variables, nesting: 0 };
    let value = reader.sum()?;
    reader.space();
    if reader.at < text.len() {
        Err(reader.unexpected("an operator or the end"))
    } else {
        value.into_value()
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    variables: &'a Map,
    nesting: usize,
}

impl Reader<'_> {
    fn sum(&mut self) -> Result<Number> {
        self.nested(|reader| {
            let mut left = reader.product()?;
            loop {
                left = match reader.operator(&["+", "-"]) {
                    Some("+") => left.add(&reader.product()?),
                    Some(_) => left.subtract(&reader.product()?),
                    None => return Ok(left),
                };
                reader.finite(&left)?;
            }
        })
    }

    fn product(&mut self) -> Result<Number> {
        let mut left = self.signed()?;
        loop {
            // `**` is a power, which binds tighter and was parsed already.
            left = match self.operator(&["*", "//", "/", "%"]) {
                Some("*") => left.multiply(&self.signed()?)?,
                Some("//") => left.quotient(&self.signed()?, Rounding::Down)?,
                Some("/") => left.divide(&self.signed()?)?,
                Some(_) => left.modulo(&self.signed()?)?,
                None => return Ok(left),
            };
            self.finite(&left)?;
        }
    }

    fn signed(&mut self) -> Result<Number> {
        match self.operator(&["-", "+"]) {
            Some("-") => Ok(self.nested(Self::signed)?.negate()),
            Some(_) => self.nested(Self::signed),
            None => self.power(),
        }
    }

    fn power(&mut self) -> Result<Number> {
        let base = self.factorial()?;
        if self.operator(&["^", "**"]).is_none() {
            return Ok(base);
        }
        let exponent = self.nested(Self::signed)?;
        let power = base.power(&exponent)?;
        self.finite(&power)?;
        Ok(power)
    }

    fn factorial(&mut self) -> Result<Number> {
        let mut value = self.operand()?;
        while self.operator(&["!"]).is_some() {
            let Number::Small(n @ 0..=3_248) = value else {
                return Err(self.problem("`!` is defined for integers from 0 to 3248"));
            };
            value = Number::read("expression", &super::factorial(n)?)?;
        }
        Ok(value)
    }

    fn operand(&mut self) -> Result<Number> {
        self.space();
        let rest = &self.text[self.at..];
        match rest.chars().next() {
            Some('(') => {
                self.at += 1;
                let value = self.sum()?;
                self.expect(")")?;
                Ok(value)
            }
            Some(c) if c.is_ascii_digit() || c == '.' => self.number(),
            Some(c) if c.is_alphabetic() || c == '_' => self.name(),
            _ => Err(self.unexpected("a number, a name or `(`")),
        }
    }

    fn number(&mut self) -> Result<Number> {
        let bytes = self.text.as_bytes();
        let digits = |mut at: usize| {
            while bytes.get(at).is_some_and(|byte| byte.is_ascii_digit() || *byte == b'_') {
                at += 1;
            }
            at
        };
        let start = self.at;
        let mut end = digits(start);
        let mut is_float = false;
        if bytes.get(end) == Some(&b'.') {
            is_float = true;
            end = digits(end + 1);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let signed = end + 1 + usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let after = digits(signed);
            if after > signed {
                is_float = true;
                end = after;
            }
        }
        let text = self.text[start..end].replace('_', "");
        let number = if is_float {
            text.parse().ok().filter(|float: &f64| float.is_finite()).map(Number::Float)
        } else {
            bits_fit(u64::try_from(text.len()).ok().and_then(|n| n.checked_mul(3)))?;
            text.parse().ok().map(|integer: num_bigint::BigInt| Number::from(integer))
        };
        let number = number.ok_or_else(|| self.unexpected("a number"))?;
        self.at = end;
        Ok(number)
    }

    fn name(&mut self) -> Result<Number> {
        let start = self.at;
        let rest = &self.text[start..];
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = &rest[..length];
        self.at += length;
        self.space();
        if self.text[self.at..].starts_with('(') && self.variable(name).is_none() {
            self.at += 1;
            let mut arguments = vec![self.sum()?];
            while self.operator(&[","]).is_some() {
                arguments.push(self.sum()?);
            }
            self.expect(")")?;
            let result = apply(name, &arguments);
            let value = result.unwrap_or_else(|| self.unknown(start, name, "function"))?;
            self.finite(&value)?;
            return Ok(value);
        }
        if let Some(value) = self.variable(name) {
            return Number::read(&format!("variables.{name}"), value);
        }
        match name {
            "pi" => Ok(Number::Float(std::f64::consts::PI)),
            "e" => Ok(Number::Float(std::f64::consts::E)),
            "tau" => Ok(Number::Float(std::f64::consts::TAU)),
            _ => self.unknown(start, name, "variable"),
        }
    }

    fn variable(&self, name: &str) -> Option<&Value> {
        let mut entries = self.variables.iter();
        entries.find(|(key, _)| crate::arguments::name_of(key) == Some(name)).map(|(_, value)| value)
    }

    fn unknown(&mut self, start: usize, name: &str, what: &str) -> Result<Number> {
        self.at = start;
        let name = rtfs::text::excerpt(name, 40);
        Err(self.problem(&format!("no {what} of this many arguments is named {name}")))
    }

    /// Returns the operator that follows, if it is one of these.
    fn operator(&mut self, operators: &[&'static str]) -> Option<&'static str> {
        self.space();
        let rest = &self.text[self.at..];
        let found = operators.iter().find(|operator| rest.starts_with(**operator))?;
        if *found == "*" && rest.starts_with("**") {
            return None;
        }
        self.at += found.len();
        Some(found)
    }

    fn expect(&mut self, token: &'static str) -> Result<()> {
        match self.operator(&[token]) {
            Some(_) => Ok(()),
            None => Err(self.unexpected(&format!("`{token}`"))),
        }
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(BuiltinError::limit("the nesting", format_args!("{MAX_NESTING} levels")));
        }
        let result = read(self);
        self.nesting -= 1;
        result
    }

    fn finite(&self, number: &Number) -> Result<()> {
        match number {
            Number::Float(float) if !float.is_finite() => {
                Err(self.problem("a part of it is no finite number"))
            }
            Number::Big(integer) => bits_fit(Some(integer.bits())),
            _ => Ok(()),
        }
    }

    fn space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn unexpected(&self, expected: &str) -> BuiltinError {
        let got = match self.text[self.at..].chars().next() {
            Some(c) => format!("{c:?}"),
            None => "the end".to_owned(),
        };
        self.problem(&format!("expected {expected}, got {got}"))
    }

    fn problem(&self, problem: &str) -> BuiltinError {
        let column = self.text[..self.at].chars().count() + 1;
        BuiltinError::content("expression", format_args!("{problem} (at character {column})"))
    }
}

/// Returns a function's value; `None` if no function has this name and number of arguments.
fn apply(name: &str, arguments: &[Number]) -> Option<Result<Number>> {
    let float = |function: fn(f64) -> f64| {
        let [x] = arguments else { return None };
        Some(x.to_f64("expression").map(|x| Number::Float(function(x))))
    };
    let rounded = |rounding| {
        let [x] = arguments else { return None };
        Some(x.round(0, rounding))
    };
    let integers = |combine: fn(&num_bigint::BigInt, &num_bigint::BigInt) -> num_bigint::BigInt| {
        let [a, b] = arguments else { return None };
        let (Some(a), Some(b)) = (a.to_big(), b.to_big()) else {
            return Some(Err(BuiltinError::content(
                "expression",
                format_args!("{name} needs integers"),
            )));
        };
        Some(Ok(combine(&a, &b).into()))
    };
    match (name, arguments) {
        ("abs", [x]) => Some(Ok(x.abs())),
        ("sqrt", [x]) => Some(super::square_root(x)),
        ("log", [x, base]) => Some(x.to_f64("expression").and_then(|x| {
            let base = base.to_f64("expression")?;
            Ok(Number::Float(super::logarithm(x, base)))
        })),
        ("atan2", [y, x]) => Some(y.to_f64("expression").and_then(|y| {
            let x = x.to_f64("expression")?;
            Ok(Number::Float(y.atan2(x)))
        })),
        ("round", [x, Number::Small(digits @ -400..=400)]) => Some(x.round(*digits, Rounding::HalfAway)),
        ("min", numbers) => numbers.iter().min_by(|a, b| a.compare(b)).map(|n| Ok(n.clone())),
        ("max", numbers) => numbers.iter().max_by(|a, b| a.compare(b)).map(|n| Ok(n.clone())),
        ("cbrt", _) => float(f64::cbrt),
        ("exp", _) => float(f64::exp),
        ("ln", _) => float(f64::ln),
        ("log10" | "log", _) => float(f64::log10),
        ("log2", _) => float(f64::log2),
        ("sin", _) => float(f64::sin),
        ("cos", _) => float(f64::cos),
        ("tan", _) => float(f64::tan),
        ("asin", _) => float(f64::asin),
        ("acos", _) => float(f64::acos),
        ("atan", _) => float(f64::atan),
        ("floor", _) => rounded(Rounding::Down),
        ("ceil", _) => rounded(Rounding::Up),
        ("round", _) => rounded(Rounding::HalfAway),
        ("gcd", _) => integers(super::gcd),
        ("lcm", _) => integers(num_integer::Integer::lcm),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CapabilityRegistry;

    fn run(expression: &str) -> std::result::Result<String, String> {
        let mut input = Map::new();
        input.insert(Value::keyword("expression"), expression.into()).unwrap();
        let builtin = CapabilityRegistry.get("math.evaluate").unwrap();
        builtin.call(&input.into()).map(|value| value.pr_str()).map_err(|error| error.to_string())
    }

    #[test]
    fn follows_the_usual_rules() {
        let cases = [
            ("1 + 2 * 3", "7"),
            ("(1 + 2) * 3", "9"),
            ("2^3^2", "512"),
            ("-2^2", "-4"),
            ("2**-1", "0.5"),
            ("2 ** 3 * 2", "16"),
            ("7 / 2", "3.5"),
            ("6 / 2", "3"),
            ("-7 // 2", "-4"),
            ("-7 % 3", "2"),
            ("5! / 3!", "20"),
            ("10 - 2 - 3", "5"),
            ("--3", "3"),
            ("1_000 + .5", "1000.5"),
            ("1e3", "1000.0"),
            ("round(2.675, 2)", "2.68"),
            ("min(3, 1, 2) + max(1, 2.5)", "3.5"),
            ("gcd(12, 18)", "6"),
            ("log(8, 2)", "3.0"),
            ("sin(0) + cos(0)", "1.0"),
            ("2e", "expression: expected an operator or the end, got 'e' (at character 2)"),
            ("1 +", "expression: expected a number, a name or `(`, got the end (at character 4)"),
            ("foo(1)", "expression: no function of this many arguments is named foo (at character 1)"),
            ("x", "expression: no variable of this many arguments is named x (at character 1)"),
            ("1 / 0", "a quotient by zero has no value"),
            ("ln(0)", "expression: a part of it is no finite number (at character 6)"),
            ("9^9^9^9", "the number would be more than 10000 digits"),
        ];
        for (expression, expected) in cases {
            assert_eq!(run(expression).unwrap_or_else(|error| error), expected, "{expression}");
        }
        let deep = format!("{}1{}", "(".repeat(5_000), ")".repeat(4_999));
        assert_eq!(run(&deep).unwrap_err(), "the nesting would be more than 100 levels");
    }
}
