//! Every example of the reference gives what it says it gives.

use rtfs::eval_pure;

#[test]
fn every_example_of_the_reference_is_right() {
    let text = include_str!("../../../docs/rtfs.md");
    let blocks = text.split("```rtfs\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in blocks.flat_map(str::lines) {
        let Some((program, expected)) = line.rsplit_once(" => ") else {
            wrong.push(format!("no value: {line}"));
            continue;
        };
        count += 1;
        match eval_pure(program) {
            Ok(value) if value.pr_str() == expected => {}
            Ok(value) => wrong.push(format!("{program}: {expected} expected, got {}", value.pr_str())),
            Err(failure) => wrong.push(format!("{program}: {failure}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 40, "{count} examples");
}

/// The names that a program may rely on.
const LIBRARY: &str = "
    + - * / quot rem mod inc dec abs min max sqrt pow exp ln floor ceil round trunc even? odd? zero?
    pos? neg? int float number parse-int parse-float bit-and bit-or bit-xor bit-shift-left
    bit-shift-right factorial gcd = == != < > <= >= compare identical? str fmt string-length count
    substring subs string-contains? includes? starts-with? ends-with? index-of string-upper upper
    string-lower lower string-trim trim trim-start trim-end string-join join split split-lines
    replace replace-first repeat-string pad-start pad-end reverse-string re-find re-matches re-seq
    re-replace blank? char-code from-char-codes vector list hash-map hash-set vec set into get
    get-in assoc assoc-in dissoc update update-in merge merge-with select-keys rename-keys keys vals
    entries find contains? conj cons concat first second rest next last butlast nth empty? not-empty
    range numbers take take-last take-while drop drop-last drop-while split-at split-with reverse
    sort sort-by group-by frequencies distinct partition partition-all partition-by interleave
    interpose zip zipmap flatten map map-indexed mapcat filter remove keep reduce reductions
    reduce-kv apply some every? not-any? index-where max-by min-by sum mean median update-vals
    update-keys union intersection difference subset? iterate repeat cycle walk length
    string-contains subvec dotimes not= identity constantly comp partial complement juxt memoize
    fnil trampoline nil? bool? int? float? number? string? keyword? symbol? fn? vector? list? map?
    set? coll? seq? instant? uuid? type-name parse-json serialize-json pretty-json parse-edn pr-str
    hash diff call
";

#[test]
fn the_whole_library_exists_and_is_documented() {
    let missing: Vec<_> =
        LIBRARY.split_whitespace().filter(|name| rtfs::documentation(name).is_none()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
