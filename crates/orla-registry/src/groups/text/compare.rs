//! Differences between texts.

use std::cmp::Ordering;
use std::collections::HashMap;

use imara_diff::{Algorithm, BasicLineDiffPrinter, Diff, InternedInput, Token, UnifiedDiffConfig};
use rtfs::Value;

use super::{Result, size};
use crate::arguments::Arguments;
use crate::error::BuiltinError;
use crate::limits::{BoundedText, table_fits};

/// The maximum number of pairs of equal lines that a diff may consider.
const MAX_PAIRS: usize = 100_000_000;

pub(super) fn diff(args: &Arguments<'_>) -> Result<Value> {
    let (before, after) = (args.text("before")?, args.text("after")?);
    let context = u32::try_from(args.integer_or("context", 0..=1_000, 3)?).unwrap_or(3);
    let input = InternedInput::new(before, after);
    pairs_fit(&input.before, &input.after)?;
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    let mut config = UnifiedDiffConfig::default();
    config.context_len(context);
    let mut out = BoundedText::default();
    out.write(diff.unified_diff(&BasicLineDiffPrinter(&input.interner), config, &input))?;
    Ok(out.finish())
}

/// Checks the number of pairs of equal lines, which determines the time of the algorithm. Texts with few
/// distinct lines have many pairs.
fn pairs_fit(before: &[Token], after: &[Token]) -> Result<()> {
    let shorter = before.len().min(after.len());
    let start = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    let end = before
        .iter()
        .rev()
        .zip(after.iter().rev())
        .take(shorter - start)
        .take_while(|(a, b)| a == b)
        .count();
    let mut counts = HashMap::new();
    for token in &before[start..before.len() - end] {
        *counts.entry(token.0).or_insert(0_usize) += 1;
    }
    let pairs =
        after[start..after.len() - end].iter().filter_map(|token| counts.get(&token.0)).sum::<usize>();
    if pairs > MAX_PAIRS {
        return Err(BuiltinError::limit("the comparison", "100 million pairs of equal lines"));
    }
    Ok(())
}

pub(super) fn distance(args: &Arguments<'_>) -> Result<Value> {
    let (a, b) = (args.text("a")?, args.text("b")?);
    table_fits(a.chars().count(), b.chars().count())?;
    let distance =
        if args.flag("swaps", false)? { strsim::osa_distance(a, b) } else { strsim::levenshtein(a, b) };
    Ok(size(distance))
}

pub(super) fn similarity(args: &Arguments<'_>) -> Result<Value> {
    let (a, b) = (args.text("a")?, args.text("b")?);
    table_fits(a.chars().count(), b.chars().count())?;
    Ok(Value::Float(strsim::jaro_winkler(a, b)))
}

/// Returns the natural order: without regard to case, runs of digits by their number. Ties are broken by
/// code points.
pub(in crate::groups) fn natural(a: &str, b: &str) -> Ordering {
    let (mut rest_a, mut rest_b) = (a, b);
    loop {
        let (digits_a, digits_b) = (leading_digits(rest_a), leading_digits(rest_b));
        if !digits_a.is_empty() && !digits_b.is_empty() {
            let (x, y) = (digits_a.trim_start_matches('0'), digits_b.trim_start_matches('0'));
            let order = x.len().cmp(&y.len()).then_with(|| x.cmp(y));
            if order.is_ne() {
                return order;
            }
            (rest_a, rest_b) = (&rest_a[digits_a.len()..], &rest_b[digits_b.len()..]);
            continue;
        }
        let (mut chars_a, mut chars_b) = (rest_a.chars(), rest_b.chars());
        let lower = |c: char| c.to_lowercase().next().unwrap_or(c);
        match (chars_a.next(), chars_b.next()) {
            (None, None) => return a.cmp(b),
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(x), Some(y)) if lower(x) != lower(y) => return lower(x).cmp(&lower(y)),
            _ => (rest_a, rest_b) = (chars_a.as_str(), chars_b.as_str()),
        }
    }
}

fn leading_digits(text: &str) -> &str {
    &text[..text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len()]
}
