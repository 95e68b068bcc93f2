//! YAML text ⇄ values, by YAML 1.2's core schema.

mod read;
mod scalar;
mod write;

use crate::builtin::{Builtin, defaulted, example, required};
use crate::schema::{ANY, BOOLEAN, OBJECTS, TEXT};

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "yaml.parse",
        title: "Parse YAML",
        description: "What a YAML 1.2 text says, as JSON would hold it: mappings become objects, whose keys are texts. \
                      Anchors, aliases and merge keys (<<) are resolved, within bounds; no and on are texts. A tag outside of the core schema (!circle, !!set) is ignored: \
                      its mapping or list is read as it stands, its scalar as a text. yaml.tags lists them.",
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
    Builtin {
        name: "yaml.tags",
        title: "List ignored YAML tags",
        description: "The tags in a YAML text that yaml.parse ignores, since YAML's core schema does not have them: \
                      each as it is written, with its line and column. Empty where nothing is ignored.",
        parameters: &[required("text", TEXT, "The YAML text, of one document or several.")],
        output: OBJECTS,
        examples: &[example(
            r#"{"text":"at: !point {x: 1}\nlogo: !!binary aGk=\nname: !!str 7\n"}"#,
            r#"[{"tag":"!point","line":1,"column":5},{"tag":"!!binary","line":2,"column":7}]"#,
        )],
        run: read::tags,
    },
];
