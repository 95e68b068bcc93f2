//! Operations on lists as sets: each value once, in the order of its first occurrence.

use rtfs::{Set, Value};

use crate::arguments::Arguments;
use crate::builtin::{Builtin, Parameter, example, required};
use crate::error::BuiltinError;
use crate::limits::{deep, items_fit, vector};
use crate::schema::{BOOLEAN, LIST, LISTS};

type Result<T> = std::result::Result<T, BuiltinError>;

const A: Parameter = required("a", LIST, "The first list.");
const B: Parameter = required("b", LIST, "The second list.");

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "set.combinations",
        title: "Combinations",
        description: "Every choice of so many items, in their order; equal items count as different.",
        parameters: &[
            required("items", LIST, "What is chosen from."),
            required("size", r#""type":"integer","minimum":0"#, "How many are chosen."),
        ],
        output: LISTS,
        examples: &[example(r#"{"items":[1,2,3],"size":2}"#, "[[1,2],[1,3],[2,3]]")],
        run: combinations,
    },
    Builtin {
        name: "set.difference",
        title: "Difference of sets",
        description: "The values of the first list that the second has not.",
        parameters: &[A, B],
        output: LIST,
        examples: &[example(r#"{"a":[1,2,3],"b":[2]}"#, "[1,3]")],
        run: |args| {
            let (a, b) = (read(args, "a")?, read(args, "b")?);
            members(a.iter().filter(|value| !b.contains(value)))
        },
    },
    Builtin {
        name: "set.intersection",
        title: "Intersection of sets",
        description: "The values that both lists have.",
        parameters: &[A, B],
        output: LIST,
        examples: &[example(r#"{"a":[1,2,3],"b":[3,2,4]}"#, "[2,3]")],
        run: |args| {
            let (a, b) = (read(args, "a")?, read(args, "b")?);
            members(a.iter().filter(|value| b.contains(value)))
        },
    },
    Builtin {
        name: "set.is_subset",
        title: "Is it a subset?",
        description: "Whether the second list has every value of the first.",
        parameters: &[A, B],
        output: BOOLEAN,
        examples: &[
            example(r#"{"a":[1,2],"b":[3,2,1]}"#, "true"),
            example(r#"{"a":[1,4],"b":[3,2,1]}"#, "false"),
        ],
        run: |args| {
            let (a, b) = (read(args, "a")?, read(args, "b")?);
            Ok(Value::Bool(a.iter().all(|value| b.contains(value))))
        },
    },
    Builtin {
        name: "set.product",
        title: "Product of sets",
        description: "Every row with one item of each list: the cartesian product, the last list fastest.",
        parameters: &[required("lists", LISTS, "The lists.")],
        output: LISTS,
        examples: &[example(r#"{"lists":[[1,2],["a","b"]]}"#, r#"[[1,"a"],[1,"b"],[2,"a"],[2,"b"]]"#)],
        run: product,
    },
    Builtin {
        name: "set.symmetric_difference",
        title: "Symmetric difference of sets",
        description: "The values that only one of both lists has.",
        parameters: &[A, B],
        output: LIST,
        examples: &[example(r#"{"a":[1,2],"b":[2,3]}"#, "[1,3]")],
        run: |args| {
            let (a, b) = (read(args, "a")?, read(args, "b")?);
            let only_a = a.iter().filter(|value| !b.contains(value));
            members(only_a.chain(b.iter().filter(|value| !a.contains(value))))
        },
    },
    Builtin {
        name: "set.union",
        title: "Union of sets",
        description: "The values that at least one of both lists has.",
        parameters: &[A, B],
        output: LIST,
        examples: &[example(r#"{"a":[1,2,1],"b":[2,3]}"#, "[1,2,3]")],
        run: |args| {
            let (a, b) = (read(args, "a")?, read(args, "b")?);
            members(a.iter().chain(b.iter().filter(|value| !a.contains(value))))
        },
    },
];

fn read(args: &Arguments<'_>, name: &str) -> Result<Set> {
    let mut set = Set::new();
    for value in args.list(name)?.iter() {
        deep(set.insert(value.clone()))?;
    }
    Ok(set)
}

fn members<'a>(values: impl Iterator<Item = &'a Value>) -> Result<Value> {
    vector(values.cloned().collect())
}

fn product(args: &Arguments<'_>) -> Result<Value> {
    let lists = args.list("lists")?;
    let named = lists.iter().enumerate();
    let lists = named.map(|(i, item)| crate::arguments::list(&format!("lists[{i}]"), item));
    let lists = lists.collect::<Result<Vec<_>>>()?;
    let rows = lists.iter().try_fold(1_usize, |rows, list| rows.checked_mul(list.len()));
    let rows = items_fit(rows)?;
    items_fit(rows.checked_mul(lists.len() + 1))?;
    let row = |number: usize| {
        let mut rest = number;
        let mut row: Vec<Value> = lists
            .iter()
            .rev()
            .map(|list| {
                let item = list[rest % list.len()].clone();
                rest /= list.len();
                item
            })
            .collect();
        row.reverse();
        vector(row)
    };
    vector((0..rows).map(row).collect::<Result<_>>()?)
}

fn combinations(args: &Arguments<'_>) -> Result<Value> {
    let (items, size) = (args.list("items")?, args.count("size")?);
    if size > items.len() {
        return vector(Vec::new());
    }
    // Their number: each step divides without a remainder, and the value never decreases before the end.
    let steps = size.min(items.len() - size);
    let mut count = Some(1_usize);
    for i in 0..steps {
        count = items_fit(count)
            .ok()
            .and_then(|count| count.checked_mul(items.len() - i))
            .map(|n| n / (i + 1));
    }
    items_fit(items_fit(count)?.checked_mul(size + 1))?;
    let mut places: Vec<usize> = (0..size).collect();
    let mut rows = Vec::new();
    loop {
        rows.push(vector(places.iter().map(|place| items[*place].clone()).collect())?);
        // The last index that can advance; the following ones are placed directly after it.
        let Some(at) = (0..size).rev().find(|at| places[*at] < items.len() - size + at) else { break };
        places[at] += 1;
        for next in at + 1..size {
            places[next] = places[next - 1] + 1;
        }
    }
    vector(rows)
}
