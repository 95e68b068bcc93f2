//! Arithmetic: exact on integers of any size.

mod expression;
mod functions;

use num_bigint::BigInt;
use rtfs::Value;

use crate::builtin::{Builtin, Parameter, defaulted, example, optional, required};
use crate::error::BuiltinError;
use crate::number::{Number, Rounding, sign};
use crate::schema::{BOOLEAN, COUNT, INTEGER, INTEGERS, NUMBER, TEXT};

use functions::{
    angle, bigs, clamp, factorial, format_number, from_base, gcd, is_prime, lcm, log, logarithm,
    rounding, square_root, to_base,
};

type Result = std::result::Result<Value, BuiltinError>;

const NUMBER_ONE: Parameter = required("number", NUMBER, "The number.");
const A: Parameter = required("a", NUMBER, "The first number.");
const B: Parameter = required("b", NUMBER, "The second number.");
const ANGLE: Parameter = required("angle", NUMBER, "The angle, in the given unit.");
const UNIT: Parameter = defaulted(
    "unit",
    r#""enum":["radians","degrees"]"#,
    "\"radians\"",
    "What the angle is measured in.",
);
const BASE: Parameter =
    required("base", r#""type":"integer","minimum":2,"maximum":36"#, "The base, from 2 to 36.");
const MODE: Parameter = defaulted(
    "mode",
    r#""enum":["half_up","half_even","up","down","toward_zero"]"#,
    "\"half_up\"",
    "How what lies between is rounded: `half_up` to the nearest, halves away from zero; `half_even` to the nearest, \
     halves to the even digit; `up` and `down` toward plus and minus infinity; `toward_zero` cuts off.",
);

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "math.abs",
        title: "Absolute value",
        description: "The absolute value of a number.",
        parameters: &[NUMBER_ONE],
        output: NUMBER,
        examples: &[
            example(r#"{"number":-7.5}"#, "7.5"),
            example(r#"{"number":-9223372036854775808}"#, "9223372036854775808"),
        ],
        run: |args| args.number("number")?.abs().into_value(),
    },
    Builtin {
        name: "math.add",
        title: "Add",
        description: "The sum of two numbers. Integers are exact, however large; with a float the sum is a float. For \
                      many numbers, see stats.sum.",
        parameters: &[A, B],
        output: NUMBER,
        examples: &[
            example(r#"{"a":1,"b":2}"#, "3"),
            example(r#"{"a":9223372036854775807,"b":1}"#, "9223372036854775808"),
        ],
        run: |args| args.number("a")?.add(&args.number("b")?).into_value(),
    },
    Builtin {
        name: "math.clamp",
        title: "Clamp",
        description: "The number, or the bound that it lies beyond.",
        parameters: &[
            NUMBER_ONE,
            required("min", NUMBER, "The lower bound."),
            required("max", NUMBER, "The upper bound, not below the lower one."),
        ],
        output: NUMBER,
        examples: &[example(r#"{"number":15,"min":0,"max":10}"#, "10")],
        run: clamp,
    },
    Builtin {
        name: "math.cos",
        title: "Cosine",
        description: "The cosine of an angle.",
        parameters: &[ANGLE, UNIT],
        output: NUMBER,
        examples: &[example(r#"{"angle":0}"#, "1.0")],
        run: |args| Number::Float(angle(args)?.cos()).into_value(),
    },
    Builtin {
        name: "math.divide",
        title: "Divide",
        description: "The quotient of two numbers: an exact integer where integers divide without a rest, else a float. \
                      For the rounded quotient, see math.quotient.",
        parameters: &[A, required("b", NUMBER, "The divisor, not zero.")],
        output: NUMBER,
        examples: &[example(r#"{"a":7,"b":2}"#, "3.5"), example(r#"{"a":10,"b":5}"#, "2")],
        run: |args| args.number("a")?.divide(&args.number("b")?)?.into_value(),
    },
    Builtin {
        name: "math.evaluate",
        title: "Evaluate an expression",
        description: "The value of an arithmetic expression: numbers, + - * / // % ^ (or **), parentheses, a postfix !, \
                      the constants pi, e and tau, the functions abs, sqrt, cbrt, exp, ln, log10, log2, log(x, base), sin, \
                      cos, tan, asin, acos, atan, atan2, floor, ceil, round, min, max, gcd, lcm, and named variables. \
                      Integers are exact.",
        parameters: &[
            required("expression", TEXT, "The expression, such as `(1 + x)^2 / 3`."),
            optional(
                "variables",
                r#""type":"object","additionalProperties":{"type":"number"}"#,
                "The values of the names in the expression.",
            ),
        ],
        output: NUMBER,
        examples: &[
            example(r#"{"expression":"(1 + x)^2 * 3","variables":{"x":4}}"#, "75"),
            example(r#"{"expression":"2^100"}"#, "1267650600228229401496703205376"),
            example(r#"{"expression":"max(sqrt(2), 10 // 4)"}"#, "2"),
        ],
        run: expression::evaluate,
    },
    Builtin {
        name: "math.exp",
        title: "Exponential",
        description: "e to the power of a number.",
        parameters: &[NUMBER_ONE],
        output: NUMBER,
        examples: &[example(r#"{"number":0}"#, "1.0")],
        run: |args| Number::Float(args.float("number")?.exp()).into_value(),
    },
    Builtin {
        name: "math.factorial",
        title: "Factorial",
        description: "The product of all integers from 1 to a number, exactly.",
        parameters: &[required(
            "number",
            r#""type":"integer","minimum":0,"maximum":3248"#,
            "An integer from 0 to 3248, whose factorial has 10,000 digits.",
        )],
        output: INTEGER,
        examples: &[example(r#"{"number":20}"#, "2432902008176640000"), example(r#"{"number":0}"#, "1")],
        run: |args| factorial(args.integer("number", 0..=3_248)?),
    },
    Builtin {
        name: "math.format_number",
        title: "Format a number",
        description: "A number as text, with a fixed number of decimals and separators: 1234567.5 as `1,234,567.50`.",
        parameters: &[
            NUMBER_ONE,
            defaulted(
                "decimals",
                r#""type":"integer","minimum":0,"maximum":100"#,
                "2",
                "Digits after the point.",
            ),
            defaulted(
                "thousands",
                TEXT,
                "\",\"",
                "What stands between groups of three digits; may be empty.",
            ),
            defaulted("point", TEXT, "\".\"", "What stands before the decimals."),
        ],
        output: TEXT,
        examples: &[
            example(r#"{"number":1234567.5}"#, r#""1,234,567.50""#),
            example(r#"{"number":-1234.5,"decimals":1,"thousands":".","point":","}"#, r#""-1.234,5""#),
        ],
        run: format_number,
    },
    Builtin {
        name: "math.from_base",
        title: "Read digits in a base",
        description: "The integer that digits in a base (2 for binary, 8, 16 for hexadecimal, up to 36) stand for.",
        parameters: &[
            required(
                "digits",
                TEXT,
                "The digits, with a sign if negative; `_` between them is ignored.",
            ),
            BASE,
        ],
        output: INTEGER,
        examples: &[
            example(r#"{"digits":"ff","base":16}"#, "255"),
            example(r#"{"digits":"-1010_1010","base":2}"#, "-170"),
        ],
        run: from_base,
    },
    Builtin {
        name: "math.gcd",
        title: "Greatest common divisor",
        description: "The greatest integer that divides all of the given integers; 0 if all are 0.",
        parameters: &[required("integers", INTEGERS, "The integers.")],
        output: INTEGER,
        examples: &[example(r#"{"integers":[12,18,30]}"#, "6")],
        run: |args| {
            let common = bigs(args)?.iter().fold(BigInt::from(0), |common, n| gcd(&common, n));
            Number::from(common).into_value()
        },
    },
    Builtin {
        name: "math.is_prime",
        title: "Is it a prime?",
        description: "Whether an integer is a prime number.",
        parameters: &[required("number", COUNT, "An integer from 0 to 18446744073709551615.")],
        output: BOOLEAN,
        examples: &[
            example(r#"{"number":18446744073709551557}"#, "true"),
            example(r#"{"number":1}"#, "false"),
        ],
        run: is_prime,
    },
    Builtin {
        name: "math.lcm",
        title: "Least common multiple",
        description: "The least integer above 0 that all of the given integers divide; 0 if one is 0.",
        parameters: &[required("integers", INTEGERS, "The integers.")],
        output: INTEGER,
        examples: &[example(r#"{"integers":[4,6,10]}"#, "60")],
        run: lcm,
    },
    Builtin {
        name: "math.log",
        title: "Logarithm",
        description: "The logarithm of a positive number: natural without a base.",
        parameters: &[
            required("number", NUMBER, "A number above 0."),
            optional("base", NUMBER, "The base, above 0 and not 1; without it, e."),
        ],
        output: NUMBER,
        examples: &[example(r#"{"number":1000,"base":10}"#, "3.0"), example(r#"{"number":1}"#, "0.0")],
        run: log,
    },
    Builtin {
        name: "math.modulo",
        title: "Modulo",
        description: "What is left of a quotient that is rounded down. It has the sign of the divisor: -7 modulo 3 is 2.",
        parameters: &[A, required("b", NUMBER, "The divisor, not zero.")],
        output: NUMBER,
        examples: &[example(r#"{"a":-7,"b":3}"#, "2"), example(r#"{"a":5.5,"b":2}"#, "1.5")],
        run: |args| args.number("a")?.modulo(&args.number("b")?)?.into_value(),
    },
    Builtin {
        name: "math.multiply",
        title: "Multiply",
        description: "The product of two numbers. Integers are exact, up to 10,000 digits. For many numbers, see \
                      stats.product.",
        parameters: &[A, B],
        output: NUMBER,
        examples: &[
            example(r#"{"a":4294967296,"b":4294967296}"#, "18446744073709551616"),
            example(r#"{"a":1.5,"b":2}"#, "3.0"),
        ],
        run: |args| args.number("a")?.multiply(&args.number("b")?)?.into_value(),
    },
    Builtin {
        name: "math.power",
        title: "Power",
        description: "A number to the power of another. An integer to a natural power is exact, up to 10,000 digits.",
        parameters: &[
            required("base", NUMBER, "The base."),
            required("exponent", NUMBER, "The exponent."),
        ],
        output: NUMBER,
        examples: &[
            example(r#"{"base":2,"exponent":64}"#, "18446744073709551616"),
            example(r#"{"base":9,"exponent":0.5}"#, "3.0"),
        ],
        run: |args| args.number("base")?.power(&args.number("exponent")?)?.into_value(),
    },
    Builtin {
        name: "math.quotient",
        title: "Integer quotient",
        description: "The quotient of two numbers, rounded to an integer (down, unless another mode is asked for).",
        parameters: &[
            A,
            required("b", NUMBER, "The divisor, not zero."),
            defaulted(
                "mode",
                r#""enum":["half_up","half_even","up","down","toward_zero"]"#,
                "\"down\"",
                "How it is rounded; see math.round.",
            ),
        ],
        output: INTEGER,
        examples: &[
            example(r#"{"a":7,"b":2}"#, "3"),
            example(r#"{"a":-7,"b":2,"mode":"toward_zero"}"#, "-3"),
        ],
        run: |args| {
            args.number("a")?.quotient(&args.number("b")?, rounding(args, Rounding::Down)?)?.into_value()
        },
    },
    Builtin {
        name: "math.round",
        title: "Round",
        description: "A number rounded to so many decimals, as it is written: 2.675 to 2 decimals is 2.68. Negative \
                      decimals round to tens, hundreds, and so on. Without decimals the result is an integer.",
        parameters: &[
            NUMBER_ONE,
            defaulted(
                "decimals",
                r#""type":"integer","minimum":-400,"maximum":400"#,
                "0",
                "Digits after the point.",
            ),
            MODE,
        ],
        output: NUMBER,
        examples: &[
            example(r#"{"number":2.675,"decimals":2}"#, "2.68"),
            example(r#"{"number":2.5,"mode":"half_even"}"#, "2"),
            example(r#"{"number":-1250,"decimals":-2}"#, "-1300"),
        ],
        run: |args| {
            let decimals = args.integer_or("decimals", -400..=400, 0)?;
            args.number("number")?.round(decimals, rounding(args, Rounding::HalfAway)?)?.into_value()
        },
    },
    Builtin {
        name: "math.sign",
        title: "Sign",
        description: "-1 for a negative number, 0 for zero, 1 for a positive one.",
        parameters: &[NUMBER_ONE],
        output: INTEGER,
        examples: &[example(r#"{"number":-0.5}"#, "-1")],
        run: |args| Ok(Value::Int(sign(&args.number("number")?))),
    },
    Builtin {
        name: "math.sin",
        title: "Sine",
        description: "The sine of an angle.",
        parameters: &[ANGLE, UNIT],
        output: NUMBER,
        examples: &[
            example(r#"{"angle":0}"#, "0.0"),
            example(r#"{"angle":90,"unit":"degrees"}"#, "1.0"),
        ],
        run: |args| Number::Float(angle(args)?.sin()).into_value(),
    },
    Builtin {
        name: "math.sqrt",
        title: "Square root",
        description: "The square root of a number that is not negative: an exact integer where there is one.",
        parameters: &[required("number", NUMBER, "A number of at least 0.")],
        output: NUMBER,
        examples: &[
            example(r#"{"number":144}"#, "12"),
            example(r#"{"number":2}"#, "1.4142135623730951"),
        ],
        run: |args| square_root(&args.number("number")?)?.into_value(),
    },
    Builtin {
        name: "math.subtract",
        title: "Subtract",
        description: "The first number less the second. Integers are exact.",
        parameters: &[A, B],
        output: NUMBER,
        examples: &[example(r#"{"a":1,"b":2.5}"#, "-1.5")],
        run: |args| args.number("a")?.subtract(&args.number("b")?).into_value(),
    },
    Builtin {
        name: "math.tan",
        title: "Tangent",
        description: "The tangent of an angle.",
        parameters: &[ANGLE, UNIT],
        output: NUMBER,
        examples: &[example(r#"{"angle":0}"#, "0.0")],
        run: |args| Number::Float(angle(args)?.tan()).into_value(),
    },
    Builtin {
        name: "math.to_base",
        title: "Write in a base",
        description: "The digits of an integer in a base (2 for binary, 8, 16 for hexadecimal, up to 36).",
        parameters: &[
            required("number", INTEGER, "The integer."),
            BASE,
            defaulted(
                "width",
                r#""type":"integer","minimum":0,"maximum":10000"#,
                "0",
                "Zeros fill up to so many digits.",
            ),
        ],
        output: TEXT,
        examples: &[
            example(r#"{"number":255,"base":16}"#, r#""ff""#),
            example(r#"{"number":-5,"base":2,"width":8}"#, r#""-00000101""#),
        ],
        run: to_base,
    },
];
