//! Statistics of lists of numbers.

use rtfs::Value;

use crate::arguments::Arguments;
use crate::builtin::{Builtin, Parameter, defaulted, example, required};
use crate::error::BuiltinError;
use crate::groups::record;
use crate::limits::{MAX_BITS, bits_fit, vector};
use crate::number::Number;
use crate::schema::{NUMBER, NUMBERS};

type Result<T> = std::result::Result<T, BuiltinError>;

const LIST: Parameter = required("numbers", NUMBERS, "The numbers, at least one.");
const KIND: Parameter = defaulted(
    "kind",
    r#""enum":["sample","population"]"#,
    "\"sample\"",
    "`sample` divides by one less than the count, `population` by the count.",
);
const X: Parameter = required("x", NUMBERS, "The first numbers, at least two.");
const Y: Parameter = required("y", NUMBERS, "The second numbers, as many as the first.");

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "stats.correlation",
        title: "Correlation",
        description: "Pearson's correlation of two lists of numbers, from -1 to 1.",
        parameters: &[X, Y],
        output: NUMBER,
        examples: &[example(r#"{"x":[1,2,3],"y":[2,4,6]}"#, "1.0")],
        run: correlation,
    },
    Builtin {
        name: "stats.describe",
        title: "Describe numbers",
        description: "A summary of numbers: count, sum, mean, standard deviation (of a sample; null for one number), \
                      minimum, quartiles and maximum.",
        parameters: &[LIST],
        output: r#""type":"object","properties":{"count":{"type":"integer"},"sum":{"type":"number"},"mean":{"type":"number"},"stddev":{"type":["number","null"]},"min":{"type":"number"},"q1":{"type":"number"},"median":{"type":"number"},"q3":{"type":"number"},"max":{"type":"number"}}"#,
        examples: &[example(
            r#"{"numbers":[1,2,3,4,5]}"#,
            r#"{"count":5,"sum":15,"mean":3.0,"stddev":1.5811388300841898,"min":1,"q1":2.0,"median":3,"q3":4.0,"max":5}"#,
        )],
        run: describe,
    },
    Builtin {
        name: "stats.histogram",
        title: "Histogram",
        description: "How many numbers fall into each of several bins of one width, from the least number to the \
                      greatest. A number on a border belongs to the upper bin; the greatest to the last.",
        parameters: &[
            LIST,
            defaulted(
                "bins",
                r#""type":"integer","minimum":1,"maximum":10000"#,
                "10",
                "The number of bins.",
            ),
        ],
        output: r#""type":"array","items":{"type":"object","properties":{"from":{"type":"number"},"to":{"type":"number"},"count":{"type":"integer"}}}"#,
        examples: &[example(
            r#"{"numbers":[0,1,2,9,10],"bins":2}"#,
            r#"[{"from":0.0,"to":5.0,"count":3},{"from":5.0,"to":10.0,"count":2}]"#,
        )],
        run: histogram,
    },
    Builtin {
        name: "stats.linear_regression",
        title: "Linear regression",
        description: "The line y = slope * x + intercept with the least squares of errors, and how well it fits (r2, \
                      from 0 to 1).",
        parameters: &[X, Y],
        output: r#""type":"object","properties":{"slope":{"type":"number"},"intercept":{"type":"number"},"r2":{"type":"number"}}"#,
        examples: &[example(
            r#"{"x":[0,1,2],"y":[1,3,5]}"#,
            r#"{"slope":2.0,"intercept":1.0,"r2":1.0}"#,
        )],
        run: linear_regression,
    },
    Builtin {
        name: "stats.max",
        title: "Maximum",
        description: "The greatest of the numbers.",
        parameters: &[LIST],
        output: NUMBER,
        examples: &[example(r#"{"numbers":[3,10,2.5]}"#, "10")],
        run: |args| extreme(args, true),
    },
    Builtin {
        name: "stats.mean",
        title: "Mean",
        description: "The arithmetic mean (average) of the numbers, as a float.",
        parameters: &[LIST],
        output: NUMBER,
        examples: &[example(r#"{"numbers":[1,2,4]}"#, "2.3333333333333335")],
        run: |args| {
            let numbers = some(args)?;
            Number::Float(mean(&floats(&numbers)?)).into_value()
        },
    },
    Builtin {
        name: "stats.median",
        title: "Median",
        description: "The number in the middle when they are sorted; of an even count, the mean of the middle two.",
        parameters: &[LIST],
        output: NUMBER,
        examples: &[example(r#"{"numbers":[7,1,3]}"#, "3"), example(r#"{"numbers":[1,2,3,4]}"#, "2.5")],
        run: |args| {
            let mut numbers = some(args)?;
            median(&mut numbers)?.into_value()
        },
    },
    Builtin {
        name: "stats.min",
        title: "Minimum",
        description: "The least of the numbers.",
        parameters: &[LIST],
        output: NUMBER,
        examples: &[example(r#"{"numbers":[3,10,2.5]}"#, "2.5")],
        run: |args| extreme(args, false),
    },
    Builtin {
        name: "stats.mode",
        title: "Mode",
        description: "The numbers that come most often, each once, in the order in which they first come.",
        parameters: &[LIST],
        output: NUMBERS,
        examples: &[example(r#"{"numbers":[1,3,3,2,1]}"#, "[1,3]")],
        run: mode,
    },
    Builtin {
        name: "stats.moving_average",
        title: "Moving average",
        description: "The mean of each run of so many neighbours: one number less than the window fewer than there were.",
        parameters: &[
            LIST,
            required("window", r#""type":"integer","minimum":1"#, "How many neighbours, at most all."),
        ],
        output: NUMBERS,
        examples: &[example(r#"{"numbers":[1,2,3,6],"window":2}"#, "[1.5,2.5,4.5]")],
        run: moving_average,
    },
    Builtin {
        name: "stats.percentile",
        title: "Percentile",
        description: "The value below which so many percent of the numbers lie, with linear interpolation between \
                      neighbours; 50 is the median.",
        parameters: &[
            LIST,
            required("percent", r#""type":"number","minimum":0,"maximum":100"#, "From 0 to 100."),
        ],
        output: NUMBER,
        examples: &[example(r#"{"numbers":[1,2,3,4,5],"percent":90}"#, "4.6")],
        run: |args| {
            let percent = args.float("percent")?;
            if !(0.0..=100.0).contains(&percent) {
                return Err(BuiltinError::content("percent", "expected a number from 0 to 100"));
            }
            let mut numbers = floats(&some(args)?)?;
            numbers.sort_by(f64::total_cmp);
            Number::Float(quantile(&numbers, percent / 100.0)).into_value()
        },
    },
    Builtin {
        name: "stats.product",
        title: "Product",
        description: "The product of all numbers; 1 for none. Integers are exact, up to 10,000 digits.",
        parameters: &[required("numbers", NUMBERS, "The numbers.")],
        output: NUMBER,
        examples: &[example(r#"{"numbers":[2,3,7]}"#, "42")],
        run: product,
    },
    Builtin {
        name: "stats.stddev",
        title: "Standard deviation",
        description: "The standard deviation of the numbers.",
        parameters: &[LIST, KIND],
        output: NUMBER,
        examples: &[example(r#"{"numbers":[2,4,4,4,5,5,7,9],"kind":"population"}"#, "2.0")],
        run: |args| Number::Float(variance(args)?.sqrt()).into_value(),
    },
    Builtin {
        name: "stats.sum",
        title: "Sum",
        description: "The sum of all numbers; 0 for none. Integers are exact; floats are added with compensation, so \
                      that rounding errors do not pile up.",
        parameters: &[required("numbers", NUMBERS, "The numbers.")],
        output: NUMBER,
        examples: &[
            example(r#"{"numbers":[1,2,3]}"#, "6"),
            example(r#"{"numbers":[0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1]}"#, "1.0"),
        ],
        run: |args| sum(&args.numbers("numbers")?).into_value(),
    },
    Builtin {
        name: "stats.variance",
        title: "Variance",
        description: "The variance of the numbers.",
        parameters: &[LIST, KIND],
        output: NUMBER,
        examples: &[example(r#"{"numbers":[1,2,3,4]}"#, "1.6666666666666667")],
        run: |args| Number::Float(variance(args)?).into_value(),
    },
];

fn some(args: &Arguments<'_>) -> Result<Vec<Number>> {
    let numbers = args.numbers("numbers")?;
    if numbers.is_empty() {
        Err(BuiltinError::content("numbers", "expected at least one"))
    } else {
        Ok(numbers)
    }
}

fn floats(numbers: &[Number]) -> Result<Vec<f64>> {
    numbers.iter().enumerate().map(|(i, number)| number.to_f64(&format!("numbers[{i}]"))).collect()
}

pub(super) fn sum(numbers: &[Number]) -> Number {
    let mut exact = Number::Small(0);
    let mut inexact = None::<(f64, f64)>;
    for number in numbers {
        match number {
            Number::Float(float) => {
                let (total, error) = inexact.unwrap_or_default();
                inexact = Some(compensated(total, error, *float));
            }
            integer => exact = exact.add(integer),
        }
    }
    match inexact {
        None => exact,
        Some((total, error)) => Number::Float(total + error).add(&exact),
    }
}

/// Neumaier's sum: the error of each addition is accumulated separately.
fn compensated(total: f64, error: f64, next: f64) -> (f64, f64) {
    let sum = total + next;
    let lost = if total.abs() >= next.abs() { (total - sum) + next } else { (next - sum) + total };
    (sum, error + lost)
}

fn total(floats: impl Iterator<Item = f64>) -> f64 {
    let (total, error) = floats.fold((0.0, 0.0), |(total, error), next| compensated(total, error, next));
    total + error
}

fn mean(floats: &[f64]) -> f64 {
    total(floats.iter().copied()) / floats.len() as f64
}

fn product(args: &Arguments<'_>) -> Result<Value> {
    let mut product = Number::Small(1);
    // A product that is close to the maximum size takes longer with each further factor.
    let mut work = 0_u64;
    for number in args.numbers("numbers")? {
        product = product.multiply(&number)?;
        if let Number::Big(big) = &product {
            work += big.bits();
            if work > 1_000 * MAX_BITS {
                bits_fit(None)?;
            }
        }
    }
    product.into_value()
}

fn extreme(args: &Arguments<'_>, greatest: bool) -> Result<Value> {
    let numbers = some(args)?;
    let best = if greatest {
        numbers.into_iter().reduce(|best, next| if next.compare(&best).is_gt() { next } else { best })
    } else {
        numbers.into_iter().reduce(|best, next| if next.compare(&best).is_lt() { next } else { best })
    };
    best.unwrap_or(Number::Small(0)).into_value()
}

fn median(numbers: &mut [Number]) -> Result<Number> {
    numbers.sort_by(Number::compare);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => Err(BuiltinError::content("numbers", "expected at least one")),
        n if n % 2 == 1 => Ok(numbers[middle].clone()),
        _ => numbers[middle - 1].add(&numbers[middle]).divide(&Number::Small(2)),
    }
}

/// Returns a quantile of sorted floats; `part` is from 0 to 1.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len().saturating_sub(1)) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
    at(low) + (at(high) - at(low)) * place.fract()
}

fn squares(floats: &[f64], mean: f64) -> f64 {
    total(floats.iter().map(|x| (x - mean) * (x - mean)))
}

fn variance(args: &Arguments<'_>) -> Result<f64> {
    let sample = args.choice("kind", &[("sample", true), ("population", false)], true)?;
    let numbers = floats(&some(args)?)?;
    let count = numbers.len() - usize::from(sample);
    if count == 0 {
        return Err(BuiltinError::content("numbers", "a sample needs at least two"));
    }
    Ok(squares(&numbers, mean(&numbers)) / count as f64)
}

fn mode(args: &Arguments<'_>) -> Result<Value> {
    let numbers = args.list("numbers")?;
    some(args)?;
    let counts = super::list::count(&numbers)?;
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
    vector(counts.into_iter().filter(|(_, count)| *count == most).map(|(number, _)| number).collect())
}

fn moving_average(args: &Arguments<'_>) -> Result<Value> {
    let (numbers, window) = (floats(&some(args)?)?, args.count("window")?);
    if window == 0 || window > numbers.len() {
        return Err(BuiltinError::content(
            "window",
            format_args!("expected from 1 to {}", numbers.len()),
        ));
    }
    let mut averages = Vec::with_capacity(numbers.len());
    let (mut sum, mut error) = (0.0, 0.0);
    for (i, number) in numbers.iter().enumerate() {
        (sum, error) = compensated(sum, error, *number);
        if i >= window {
            (sum, error) = compensated(sum, error, -numbers[i - window]);
        }
        if i + 1 >= window {
            averages.push(Number::Float((sum + error) / window as f64).into_value()?);
        }
    }
    vector(averages)
}

fn pairs(args: &Arguments<'_>) -> Result<(Vec<f64>, Vec<f64>)> {
    let (x, y) = (args.floats("x")?, args.floats("y")?);
    if x.len() != y.len() {
        return Err(BuiltinError::content("y", format_args!("expected as many as x has: {}", x.len())));
    }
    if x.len() < 2 { Err(BuiltinError::content("x", "expected at least two")) } else { Ok((x, y)) }
}

/// Returns the sums of the products of the deviations: of x and y, x and x, y and y; with both means.
fn deviations(x: &[f64], y: &[f64]) -> (f64, f64, f64, f64, f64) {
    let (mean_x, mean_y) = (mean(x), mean(y));
    let xy = total(x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)));
    (xy, squares(x, mean_x), squares(y, mean_y), mean_x, mean_y)
}

fn correlation(args: &Arguments<'_>) -> Result<Value> {
    let (x, y) = pairs(args)?;
    let (xy, xx, yy, ..) = deviations(&x, &y);
    if xx == 0.0 || yy == 0.0 {
        return Err(BuiltinError::undefined("numbers that are all the same have no correlation"));
    }
    let product = xx * yy;
    // The product is more exact unless it overflows or underflows.
    let root = if product.is_normal() { product.sqrt() } else { xx.sqrt() * yy.sqrt() };
    Number::Float((xy / root).clamp(-1.0, 1.0)).into_value()
}

fn linear_regression(args: &Arguments<'_>) -> Result<Value> {
    let (x, y) = pairs(args)?;
    let (xy, xx, yy, mean_x, mean_y) = deviations(&x, &y);
    if xx == 0.0 {
        return Err(BuiltinError::undefined("no line goes through x that are all the same"));
    }
    let slope = xy / xx;
    let r2 = if yy == 0.0 { 1.0 } else { (xy / xx) * (xy / yy) };
    record([
        ("slope", Number::Float(slope).into_value()?),
        ("intercept", Number::Float(mean_y - slope * mean_x).into_value()?),
        ("r2", Number::Float(r2.clamp(0.0, 1.0)).into_value()?),
    ])
}

fn describe(args: &Arguments<'_>) -> Result<Value> {
    let mut numbers = some(args)?;
    let mut sorted = floats(&numbers)?;
    sorted.sort_by(f64::total_cmp);
    let mean = mean(&sorted);
    let stddev = match sorted.len() {
        1 => Value::Nil,
        n => Number::Float((squares(&sorted, mean) / (n - 1) as f64).sqrt()).into_value()?,
    };
    let total = sum(&numbers);
    let median = median(&mut numbers)?;
    let (min, max) = (numbers[0].clone(), numbers[numbers.len() - 1].clone());
    record([
        ("count", super::size(numbers.len())),
        ("sum", total.into_value()?),
        ("mean", Number::Float(mean).into_value()?),
        ("stddev", stddev),
        ("min", min.into_value()?),
        ("q1", Number::Float(quantile(&sorted, 0.25)).into_value()?),
        ("median", median.into_value()?),
        ("q3", Number::Float(quantile(&sorted, 0.75)).into_value()?),
        ("max", max.into_value()?),
    ])
}

fn histogram(args: &Arguments<'_>) -> Result<Value> {
    let bins = args.integer_or("bins", 1..=10_000, 10)?;
    let numbers = floats(&some(args)?)?;
    let min = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let max = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let width = (max - min) / bins as f64;
    if !width.is_finite() {
        return Err(BuiltinError::undefined("the numbers are too far apart"));
    }
    let last = usize::try_from(bins - 1).unwrap_or(0);
    let mut counts = vec![0_usize; last + 1];
    for number in numbers {
        let bin = if width == 0.0 { 0.0 } else { ((number - min) / width).floor() };
        counts[(bin as usize).min(last)] += 1;
    }
    let border = |i: usize| if i > last { max } else { min + width * i as f64 };
    let bins = counts.into_iter().enumerate().map(|(i, count)| {
        record([
            ("from", Value::Float(border(i))),
            ("to", Value::Float(border(i + 1))),
            ("count", super::size(count)),
        ])
    });
    vector(bins.collect::<Result<_>>()?)
}
