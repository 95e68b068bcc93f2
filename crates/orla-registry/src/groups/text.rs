//! Texts. Indices and lengths count characters (code points), unless stated otherwise.

mod compare;
mod parts;
mod shape;

use rtfs::Value;
use unicode_segmentation::UnicodeSegmentation as _;

use crate::builtin::{Builtin, Parameter, defaulted, example, optional, required};
use crate::error::BuiltinError;
use crate::groups::size;
use crate::limits::vector;
use crate::schema::{BOOLEAN, COUNT, INTEGER, NUMBER, TEXT, TEXTS};

pub(super) use compare::natural;
use parts::{bounded, case, index_of, join, length, normalize, repeat, replace, some_part, split, trim};
pub(super) use shape::html;

type Result<T> = std::result::Result<T, BuiltinError>;

const SCALARS: &str = r#""type":"array","items":{"type":["string","number","boolean","null"]}"#;
const INPUT: Parameter = required("text", TEXT, "The text.");
const PART: Parameter = required("part", TEXT, "The text to look for.");
const SIDES: &str = r#""enum":["both","start","end"]"#;

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "text.case",
        title: "Change the case of a name",
        description: "A name of several words in another style: `snake_case`, `kebab-case`, `camelCase`, `PascalCase`, \
                      `CONSTANT_CASE` or `Title Case`. Words are found by case, digits and punctuation.",
        parameters: &[
            INPUT,
            required(
                "style",
                r#""enum":["snake","kebab","camel","pascal","constant","title"]"#,
                "The style.",
            ),
        ],
        output: TEXT,
        examples: &[
            example(
                r#"{"text":"userName of XMLHttpRequest","style":"snake"}"#,
                r#""user_name_of_xml_http_request""#,
            ),
            example(r#"{"text":"max_queue","style":"camel"}"#, r#""maxQueue""#),
        ],
        run: case,
    },
    Builtin {
        name: "text.contains",
        title: "Does it contain?",
        description: "Whether a text has another in it.",
        parameters: &[INPUT, PART],
        output: BOOLEAN,
        examples: &[example(r#"{"text":"orchestra","part":"chest"}"#, "true")],
        run: |args| Ok(Value::Bool(args.text("text")?.contains(args.text("part")?))),
    },
    Builtin {
        name: "text.count",
        title: "Count occurrences",
        description: "How often a text has another in it, without overlaps.",
        parameters: &[INPUT, PART],
        output: COUNT,
        examples: &[example(r#"{"text":"banana","part":"an"}"#, "2")],
        run: |args| Ok(size(args.text("text")?.matches(some_part(args)?).count())),
    },
    Builtin {
        name: "text.dedent",
        title: "Remove common indentation",
        description: "The text without the white space that all of its lines begin with. Lines of white space alone \
                      become empty.",
        parameters: &[INPUT],
        output: TEXT,
        examples: &[example(r#"{"text":"  a\n    b\n"}"#, r#""a\n  b\n""#)],
        run: shape::dedent,
    },
    Builtin {
        name: "text.diff",
        title: "Difference of two texts",
        description: "The difference of two texts, line by line, as a unified diff; empty where they are equal.",
        parameters: &[
            required("before", TEXT, "The old text."),
            required("after", TEXT, "The new text."),
            defaulted(
                "context",
                r#""type":"integer","minimum":0,"maximum":1000"#,
                "3",
                "Equal lines shown around each change.",
            ),
        ],
        output: TEXT,
        examples: &[example(
            r#"{"before":"a\nb\nc\n","after":"a\nx\nc\n"}"#,
            r#""@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n""#,
        )],
        run: compare::diff,
    },
    Builtin {
        name: "text.distance",
        title: "Edit distance",
        description: "The least number of characters to insert, delete or replace (Levenshtein), or also to swap with a \
                      neighbour, that makes one text of another.",
        parameters: &[
            required("a", TEXT, "The first text."),
            required("b", TEXT, "The second text."),
            defaulted("swaps", BOOLEAN, "false", "Count the swap of two neighbours as one change."),
        ],
        output: COUNT,
        examples: &[
            example(r#"{"a":"kitten","b":"sitting"}"#, "3"),
            example(r#"{"a":"form","b":"from","swaps":true}"#, "1"),
        ],
        run: compare::distance,
    },
    Builtin {
        name: "text.ends_with",
        title: "Does it end with?",
        description: "Whether a text ends with another.",
        parameters: &[INPUT, PART],
        output: BOOLEAN,
        examples: &[example(r#"{"text":"photo.png","part":".png"}"#, "true")],
        run: |args| Ok(Value::Bool(args.text("text")?.ends_with(args.text("part")?))),
    },
    Builtin {
        name: "text.escape",
        title: "Escape",
        description: "The text as it has to be written inside of another language: `html` (and XML) escapes & < > and \
                      both quotes; `json` and `shell` (POSIX) give a quoted literal; `regex` matches the text itself.",
        parameters: &[
            INPUT,
            required("for", r#""enum":["html","json","shell","regex"]"#, "The language."),
        ],
        output: TEXT,
        examples: &[
            example(r#"{"text":"a < \"b\" & c","for":"html"}"#, r#""a &lt; &quot;b&quot; &amp; c""#),
            example(r#"{"text":"it's","for":"shell"}"#, r#""'it'\\''s'""#),
            example(r#"{"text":"1.5*","for":"regex"}"#, r#""1\\.5\\*""#),
        ],
        run: shape::escape,
    },
    Builtin {
        name: "text.indent",
        title: "Indent",
        description: "The text with a prefix before each line that is not empty.",
        parameters: &[INPUT, defaulted("prefix", TEXT, "\"  \"", "What is put before each line.")],
        output: TEXT,
        examples: &[example(r#"{"text":"a\n\nb","prefix":"> "}"#, r#""> a\n\n> b""#)],
        run: shape::indent,
    },
    Builtin {
        name: "text.index_of",
        title: "Find a part",
        description: "The place of the first (or last) occurrence of a part, from 0; null if there is none.",
        parameters: &[INPUT, PART, defaulted("last", BOOLEAN, "false", "Look for the last occurrence.")],
        output: r#""type":["integer","null"],"minimum":0"#,
        examples: &[
            example(r#"{"text":"über über","part":"ü","last":true}"#, "5"),
            example(r#"{"text":"a","part":"b"}"#, "null"),
        ],
        run: index_of,
    },
    Builtin {
        name: "text.join",
        title: "Join",
        description: "Texts, numbers and booleans in one text, with a separator between them. Nulls are left out.",
        parameters: &[
            required("items", SCALARS, "What is joined."),
            defaulted("separator", TEXT, "\"\"", "What stands between."),
        ],
        output: TEXT,
        examples: &[example(r#"{"items":["a",1,true],"separator":", "}"#, r#""a, 1, true""#)],
        run: join,
    },
    Builtin {
        name: "text.length",
        title: "Length",
        description: "How long a text is: in characters (code points), graphemes (what people see as one character), \
                      bytes of UTF-8, words or lines.",
        parameters: &[
            INPUT,
            defaulted(
                "unit",
                r#""enum":["characters","graphemes","bytes","words","lines"]"#,
                "\"characters\"",
                "What is counted.",
            ),
        ],
        output: COUNT,
        examples: &[
            example(r#"{"text":"naïve"}"#, "5"),
            example(r#"{"text":"naïve","unit":"bytes"}"#, "6"),
            example(r#"{"text":"It's two words, no: five.","unit":"words"}"#, "5"),
        ],
        run: length,
    },
    Builtin {
        name: "text.lines",
        title: "Lines",
        description: "The lines of a text, without their ends (\\n or \\r\\n).",
        parameters: &[INPUT],
        output: TEXTS,
        examples: &[example(r#"{"text":"a\r\nb\n\nc"}"#, r#"["a","b","","c"]"#)],
        run: |args| vector(args.text("text")?.lines().map(Value::from).collect()),
    },
    Builtin {
        name: "text.lower",
        title: "Lower case",
        description: "The text in lower case.",
        parameters: &[INPUT],
        output: TEXT,
        examples: &[example(r#"{"text":"ÉCOLE"}"#, r#""école""#)],
        run: |args| bounded(args.text("text")?.to_lowercase()),
    },
    Builtin {
        name: "text.normalize",
        title: "Normalise Unicode",
        description: "The text in a normal form of Unicode, in which equal texts are equal: `nfc` (composed), `nfd` \
                      (decomposed), `nfkc` and `nfkd` (without differences of formatting, such as ligatures).",
        parameters: &[
            INPUT,
            defaulted("form", r#""enum":["nfc","nfd","nfkc","nfkd"]"#, "\"nfc\"", "The normal form."),
        ],
        output: TEXT,
        examples: &[example(r#"{"text":"ﬁ","form":"nfkc"}"#, r#""fi""#)],
        run: normalize,
    },
    Builtin {
        name: "text.pad",
        title: "Pad",
        description: "The text padded to a width; a text of that length or more is unchanged.",
        parameters: &[
            INPUT,
            required("width", COUNT, "The width in characters."),
            defaulted("fill", TEXT, "\" \"", "The character to fill with."),
            defaulted(
                "align",
                r#""enum":["left","right","center"]"#,
                "\"left\"",
                "Where the text stands.",
            ),
        ],
        output: TEXT,
        examples: &[example(r#"{"text":"7","width":3,"fill":"0","align":"right"}"#, r#""007""#)],
        run: shape::pad,
    },
    Builtin {
        name: "text.repeat",
        title: "Repeat",
        description: "The text so many times, up to 16 MiB.",
        parameters: &[
            INPUT,
            required("count", COUNT, "How many times."),
            defaulted("separator", TEXT, "\"\"", "What stands between."),
        ],
        output: TEXT,
        examples: &[example(r#"{"text":"ab","count":3,"separator":"-"}"#, r#""ab-ab-ab""#)],
        run: repeat,
    },
    Builtin {
        name: "text.replace",
        title: "Replace",
        description: "The text with each occurrence of a part replaced. For patterns, see regex.replace.",
        parameters: &[
            INPUT,
            required("from", TEXT, "The part, not empty."),
            required("to", TEXT, "What takes its place."),
            optional("limit", COUNT, "Replace so many, from the start; without it, all."),
        ],
        output: TEXT,
        examples: &[example(r#"{"text":"a-b-c","from":"-","to":" - ","limit":1}"#, r#""a - b-c""#)],
        run: replace,
    },
    Builtin {
        name: "text.reverse",
        title: "Reverse a text",
        description: "The text backwards, by graphemes, so that accents stay with their letters.",
        parameters: &[INPUT],
        output: TEXT,
        examples: &[example(r#"{"text":"noël"}"#, r#""lëon""#)],
        run: |args| Ok(Value::from(args.text("text")?.graphemes(true).rev().collect::<String>())),
    },
    Builtin {
        name: "text.similarity",
        title: "Similarity",
        description: "How similar two texts are, from 0 to 1 (Jaro and Winkler's measure, made for names).",
        parameters: &[required("a", TEXT, "The first text."), required("b", TEXT, "The second text.")],
        output: NUMBER,
        examples: &[
            example(r#"{"a":"orla","b":"orla"}"#, "1.0"),
            example(r#"{"a":"abc","b":"xyz"}"#, "0.0"),
        ],
        run: compare::similarity,
    },
    Builtin {
        name: "text.slice",
        title: "Slice a text",
        description: "The characters from one place to another. Negative places count from the end; what lies outside \
                      is cut.",
        parameters: &[
            INPUT,
            defaulted("start", INTEGER, "0", "The first place, from 0."),
            optional("end", INTEGER, "The place after the last; without it, the end of the text."),
        ],
        output: TEXT,
        examples: &[
            example(r#"{"text":"überall","start":0,"end":4}"#, r#""über""#),
            example(r#"{"text":"abc","start":-1}"#, r#""c""#),
        ],
        run: |args| {
            let text = args.text("text")?;
            let range = super::bounds(args, text.chars().count())?;
            Ok(Value::from(text.chars().skip(range.start).take(range.len()).collect::<String>()))
        },
    },
    Builtin {
        name: "text.slug",
        title: "Slug",
        description: "A name for a URL or file: lower case, without accents, and a hyphen for each run of characters other than a letter or \
                      digit.",
        parameters: &[INPUT],
        output: TEXT,
        examples: &[example(r#"{"text":" Crème brûlée: 2 ways! "}"#, r#""creme-brulee-2-ways""#)],
        run: shape::slug,
    },
    Builtin {
        name: "text.split",
        title: "Split",
        description: "The parts of a text between separators; without a separator, between white space.",
        parameters: &[
            INPUT,
            optional(
                "separator",
                TEXT,
                "What stands between the parts, not empty; without it, any white space.",
            ),
            optional(
                "limit",
                r#""type":"integer","minimum":1"#,
                "At most so many parts; the last holds the rest.",
            ),
        ],
        output: TEXTS,
        examples: &[
            example(r#"{"text":"a,b,,c","separator":","}"#, r#"["a","b","","c"]"#),
            example(r#"{"text":" a  b\n"}"#, r#"["a","b"]"#),
            example(r#"{"text":"k=v=w","separator":"=","limit":2}"#, r#"["k","v=w"]"#),
        ],
        run: split,
    },
    Builtin {
        name: "text.starts_with",
        title: "Does it start with?",
        description: "Whether a text starts with another.",
        parameters: &[INPUT, PART],
        output: BOOLEAN,
        examples: &[example(r#"{"text":"https://a.example","part":"https://"}"#, "true")],
        run: |args| Ok(Value::Bool(args.text("text")?.starts_with(args.text("part")?))),
    },
    Builtin {
        name: "text.trim",
        title: "Trim",
        description: "The text without white space, or without some characters, at its ends.",
        parameters: &[
            INPUT,
            optional("characters", TEXT, "The characters to remove; without them, white space."),
            defaulted("side", SIDES, "\"both\"", "Which end."),
        ],
        output: TEXT,
        examples: &[
            example(r#"{"text":"  a b \n"}"#, r#""a b""#),
            example(r#"{"text":"--a-","characters":"-","side":"start"}"#, r#""a-""#),
        ],
        run: trim,
    },
    Builtin {
        name: "text.truncate",
        title: "Truncate",
        description: "The text cut to a length, with an ellipsis in place of what was cut off.",
        parameters: &[
            INPUT,
            required("length", COUNT, "The greatest length, the ellipsis included, in graphemes."),
            defaulted("ellipsis", TEXT, "\"…\"", "What stands for the rest."),
        ],
        output: TEXT,
        examples: &[example(r#"{"text":"a long story","length":7}"#, r#""a long…""#)],
        run: shape::truncate,
    },
    Builtin {
        name: "text.upper",
        title: "Upper case",
        description: "The text in upper case.",
        parameters: &[INPUT],
        output: TEXT,
        examples: &[example(r#"{"text":"straße"}"#, r#""STRASSE""#)],
        run: |args| bounded(args.text("text")?.to_uppercase()),
    },
    Builtin {
        name: "text.words",
        title: "Words",
        description: "The words of a text by Unicode's rules, without the white space and punctuation between them.",
        parameters: &[INPUT],
        output: TEXTS,
        examples: &[example(
            r#"{"text":"Don't panic, 42 is ok."}"#,
            r#"["Don't","panic","42","is","ok"]"#,
        )],
        run: |args| vector(args.text("text")?.unicode_words().map(Value::from).collect()),
    },
    Builtin {
        name: "text.wrap",
        title: "Wrap lines",
        description: "The text with line breaks at white space, so that no line is longer than a width. A longer word \
                      has a line of its own; empty lines stay.",
        parameters: &[
            INPUT,
            defaulted(
                "width",
                r#""type":"integer","minimum":1"#,
                "80",
                "The greatest length of a line, in graphemes.",
            ),
        ],
        output: TEXT,
        examples: &[example(
            r#"{"text":"the quick brown fox","width":10}"#,
            r#""the quick\nbrown fox""#,
        )],
        run: shape::wrap,
    },
];
