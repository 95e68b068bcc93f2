//! YAML text ⇄ values, by YAML 1.2's core schema.

mod read;
mod scalar;
mod write;

use crate::builtin::{Builtin, defaulted, example, required};
use crate::schema::{ANY, BOOLEAN, TEXT};

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "yaml.parse",
        title: "Parse YAML",
        description: "What a YAML 1.2 text says, as JSON would hold it: mappings become objects, whose keys are texts. \
                      Anchors, aliases and merge keys (<<) are resolved, within bounds; no and on are texts.",
        parameters: &[
            required("text", TEXT, "The YAML text."),
            defaulted("documents", BOOLEAN, "false", "Read several documents, and give a list of them."),
        ],
        output: ANY,
        examples: &[
            example(
                r#"{"text":"base: &b {x: 1}\nlist:\n  - on\n  - 0x1f\n  - ~\nown: {<<: *b, y: 1.50}\n"}"#,
                r#"{"base":{"x":1},"list":["on",31,null],"own":{"y":1.5,"x":1}}"#,
            ),
            example(r#"{"text":"a\n---\nb\n","documents":true}"#, r#"["a","b"]"#),
        ],
        run: read::parse,
    },
    Builtin {
        name: "yaml.print",
        title: "Print YAML",
        description: "A value as YAML text in block style, with texts quoted where they need it. Any reader of YAML 1.1 \
                      or 1.2 reads the same value.",
        parameters: &[required("value", ANY, "The value.")],
        output: TEXT,
        examples: &[example(
            r#"{"value":{"a":[1,{"b":"no","c":[]}],"text":"two\nlines\n"}}"#,
            r#""a:\n- 1\n- b: \"no\"\n  c: []\ntext: |\n  two\n  lines\n""#,
        )],
        run: write::print,
    },
];
