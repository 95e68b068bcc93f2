//! Hashes of texts and bytes.

use hmac::{Hmac, KeyInit as _, Mac as _};
use md5::Md5;
use rtfs::Value;
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use crate::arguments::Arguments;
use crate::builtin::{Builtin, Parameter, defaulted, example, required};
use crate::error::BuiltinError;
use crate::groups::bytes::{FROM, TO, read, write};
use crate::schema::TEXT;

type Result<T> = std::result::Result<T, BuiltinError>;

const DATA: Parameter = required("data", TEXT, "What is hashed.");
const ALGORITHM: &str = r#""enum":["md5","sha1","sha256","sha384","sha512"]"#;

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "hash.crc32",
        title: "CRC-32",
        description: "The CRC-32 checksum (as in ZIP and PNG), as an integer. It finds accidents, not intentions.",
        parameters: &[DATA, FROM],
        output: r#""type":"integer","minimum":0"#,
        examples: &[example(r#"{"data":"123456789"}"#, "3421780262")],
        run: |args| Ok(Value::Int(crc32fast::hash(&read(args, "data")?).into())),
    },
    Builtin {
        name: "hash.hmac",
        title: "HMAC",
        description: "A keyed hash (HMAC), which shows everyone who has the key that data is authentic.",
        parameters: &[
            DATA,
            required("key", TEXT, "The key, as text."),
            defaulted("algorithm", ALGORITHM, "\"sha256\"", "The hash."),
            FROM,
            TO,
        ],
        output: TEXT,
        examples: &[example(
            r#"{"data":"The quick brown fox jumps over the lazy dog","key":"key"}"#,
            r#""f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8""#,
        )],
        run: hmac,
    },
    Builtin {
        name: "hash.md5",
        title: "MD5",
        description: "The MD5 hash, for old checksums only: collisions are easily made.",
        parameters: &[DATA, FROM, TO],
        output: TEXT,
        examples: &[example(r#"{"data":""}"#, r#""d41d8cd98f00b204e9800998ecf8427e""#)],
        run: |args| write(args, &Md5::digest(read(args, "data")?)),
    },
    Builtin {
        name: "hash.sha1",
        title: "SHA-1",
        description: "The SHA-1 hash, for old checksums only (git, TLS fingerprints): collisions can be made.",
        parameters: &[DATA, FROM, TO],
        output: TEXT,
        examples: &[example(r#"{"data":"abc"}"#, r#""a9993e364706816aba3e25717850c26c9cd0d89d""#)],
        run: |args| write(args, &Sha1::digest(read(args, "data")?)),
    },
    Builtin {
        name: "hash.sha256",
        title: "SHA-256",
        description: "The SHA-256 hash, as hexadecimal digits or base64.",
        parameters: &[DATA, FROM, TO],
        output: TEXT,
        examples: &[
            example(
                r#"{"data":"abc"}"#,
                r#""ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad""#,
            ),
            example(
                r#"{"data":"616263","from":"hex","to":"base64"}"#,
                r#""ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=""#,
            ),
        ],
        run: |args| write(args, &Sha256::digest(read(args, "data")?)),
    },
    Builtin {
        name: "hash.sha384",
        title: "SHA-384",
        description: "The SHA-384 hash, as hexadecimal digits or base64 (as in `integrity` attributes).",
        parameters: &[DATA, FROM, TO],
        output: TEXT,
        examples: &[example(
            r#"{"data":"abc"}"#,
            r#""cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7""#,
        )],
        run: |args| write(args, &Sha384::digest(read(args, "data")?)),
    },
    Builtin {
        name: "hash.sha512",
        title: "SHA-512",
        description: "The SHA-512 hash, as hexadecimal digits or base64.",
        parameters: &[DATA, FROM, TO],
        output: TEXT,
        examples: &[example(
            r#"{"data":"abc"}"#,
            r#""ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f""#,
        )],
        run: |args| write(args, &Sha512::digest(read(args, "data")?)),
    },
];

fn hmac(args: &Arguments<'_>) -> Result<Value> {
    type Keyed = fn(&[u8], &[u8]) -> Option<Vec<u8>>;
    macro_rules! keyed {
        ($hash:ty) => {
            |key, data| {
                let mut mac = Hmac::<$hash>::new_from_slice(key).ok()?;
                mac.update(data);
                Some(mac.finalize().into_bytes().to_vec())
            }
        };
    }
    let algorithms: [(&str, Keyed); 5] = [
        ("sha256", keyed!(Sha256)),
        ("md5", keyed!(Md5)),
        ("sha1", keyed!(Sha1)),
        ("sha384", keyed!(Sha384)),
        ("sha512", keyed!(Sha512)),
    ];
    let keyed = args.choice("algorithm", &algorithms, algorithms[0].1)?;
    let hash = keyed(args.text("key")?.as_bytes(), &read(args, "data")?);
    write(args, &hash.ok_or_else(|| BuiltinError::content("key", "it cannot be used"))?)
}
