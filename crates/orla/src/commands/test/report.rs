//! How cases went: for people, for programs and as JUnit's XML. No I/O.

use std::fmt::Write as _;

use orla_history::millis;
use serde_json::{Value, json};

use super::Outcomes;

/// Returns a line for each case, its differences below it, and a summary.
pub(super) fn text(outcomes: &[Outcomes]) -> String {
    let mut out = String::new();
    for one in outcomes {
        let word = if one.differences.is_empty() { "ok  " } else { "FAIL" };
        let recorded = match one.recorded.filter(|recorded| !recorded.is_zero()) {
            Some(recorded) => format!("; its calls took {} ms when recorded", recorded.as_millis()),
            None => String::new(),
        };
        let _ = writeln!(out, "{word} {} ({} ms{recorded})", one.name, one.took.as_millis());
        for difference in &one.differences {
            let _ = writeln!(out, "       {difference}");
        }
    }
    let failed = outcomes.iter().filter(|one| !one.differences.is_empty()).count();
    let _ = writeln!(out, "{} passed, {failed} failed", outcomes.len() - failed);
    out
}

pub(super) fn json(outcomes: &[Outcomes]) -> Value {
    let row = |one: &Outcomes| {
        let ok = one.differences.is_empty();
        let took = millis(one.took);
        let mut row = json!({"name": one.name, "ok": ok, "file": one.file.display().to_string(), "duration_ms": took});
        if let Some(recorded) = one.recorded {
            row["recorded_ms"] = millis(recorded).into();
        }
        if !ok {
            row["message"] = one.differences.join("\n").into();
        }
        row
    };
    outcomes.iter().map(row).collect()
}

/// Returns a report in the XML that JUnit made common.
pub(super) fn junit(outcomes: &[Outcomes]) -> String {
    let failures = outcomes.iter().filter(|one| !one.differences.is_empty()).count();
    let total: f64 = outcomes.iter().map(|one| one.took.as_secs_f64()).sum();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"orla\" tests=\"{}\" failures=\"{failures}\" time=\"{total:.3}\">\n",
        outcomes.len()
    );
    for one in outcomes {
        let (name, file) = (escaped(&one.name), escaped(&one.file.display().to_string()));
        let _ = write!(
            out,
            "<testcase name=\"{name}\" classname=\"{file}\" time=\"{:.3}\"",
            one.took.as_secs_f64()
        );
        match &one.differences[..] {
            [] => out.push_str("/>\n"),
            [first, ..] => {
                let _ = writeln!(
                    out,
                    "><failure message=\"{}\">{}</failure></testcase>",
                    escaped(first),
                    escaped(&one.differences.join("\n"))
                );
            }
        }
    }
    out.push_str("</testsuite>\n</testsuites>\n");
    out
}

/// Escapes a text for XML. Characters that XML 1.0 does not allow are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            c if c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn outcome(name: &str, differences: &[&str]) -> Outcomes {
        let differences = differences.iter().map(|one| (*one).to_owned()).collect();
        Outcomes {
            name: name.to_owned(),
            file: "t.yaml".into(),
            differences,
            took: Duration::from_millis(3),
            recorded: None,
        }
    }

    #[test]
    fn a_replay_says_how_long_its_calls_took() {
        let replayed =
            [Outcomes { recorded: Some(Duration::from_millis(1200)), ..outcome("sums", &[]) }];
        let line = "ok   sums (3 ms; its calls took 1200 ms when recorded)\n";
        assert!(text(&replayed).starts_with(line), "{}", text(&replayed));
        assert_eq!(json(&replayed)[0]["recorded_ms"], 1200.0);
        assert_eq!(json(&[outcome("sums", &[])])[0].get("recorded_ms"), None);
    }

    #[test]
    fn a_report_says_what_failed_and_why() {
        let outcomes =
            [outcome("sums", &[]), outcome("a<b>\u{1b}", &["output.sum: expected 4, got \"3\""])];
        assert_eq!(text(&outcomes[..1]), "ok   sums (3 ms)\n1 passed, 0 failed\n");
        assert!(
            text(&outcomes).ends_with("       output.sum: expected 4, got \"3\"\n1 passed, 1 failed\n")
        );
        assert_eq!(json(&outcomes)[1]["message"], "output.sum: expected 4, got \"3\"");
        assert_eq!(json(&outcomes)[0].get("message"), None);
        let xml = junit(&outcomes);
        assert!(xml.contains("tests=\"2\" failures=\"1\""), "{xml}");
        assert!(xml.contains("name=\"a&lt;b&gt;\u{fffd}\""), "{xml}");
        assert!(
            xml.contains("<failure message=\"output.sum: expected 4, got &quot;3&quot;\">"),
            "{xml}"
        );
    }
}
