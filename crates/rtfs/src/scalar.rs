//! The scalar kinds that do not fit into a [`Value`](crate::Value) directly.

use std::hash::{BuildHasher, Hash};
use std::sync::LazyLock;

use foldhash::quality::RandomState;
use triomphe::Arc;

/// A name such as `:city`, `:ns/name` or `:"any text"`.
///
/// It is a counted string and not a number in a program's table, because a value crosses programs: most
/// keywords come from JSON, belong to no program, and must be freed with their data (a global table
/// would let any client grow it without limit). Its hash is computed once. Clones, such as the constants
/// of one program or the equal keys of one JSON text, share one pointer, so a comparison is usually that
/// of two pointers.
#[derive(Clone, Debug)]
pub struct Keyword(Arc<Name>);

/// A name of a program, such as `map` or `even?`.
#[derive(Clone, Debug)]
pub struct Symbol(Arc<Name>);

#[derive(Debug)]
struct Name {
    hash: u64,
    text: Box<str>,
}

impl Name {
    fn new(text: Box<str>) -> Arc<Self> {
        Arc::new(Self { hash: hash_of(&*text), text })
    }
}

impl Keyword {
    /// Creates a keyword. `name` is without its colon and may be any text.
    pub fn new(name: impl Into<Box<str>>) -> Self {
        Self(Name::new(name.into()))
    }

    /// Returns the text without its colon.
    pub fn name(&self) -> &str {
        &self.0.text
    }

    pub(crate) fn cached_hash(&self) -> u64 {
        self.0.hash
    }
}

impl Symbol {
    /// Returns the symbol of this name.
    pub fn new(name: impl Into<Box<str>>) -> Self {
        Self(Name::new(name.into()))
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.0.text
    }

    pub(crate) fn cached_hash(&self) -> u64 {
        self.0.hash
    }
}

#[inline]
fn same_name(a: &Arc<Name>, b: &Arc<Name>) -> bool {
    Arc::ptr_eq(a, b) || (a.hash == b.hash && a.text == b.text)
}

impl PartialEq for Keyword {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        same_name(&self.0, &other.0)
    }
}

impl Eq for Keyword {}

impl PartialEq for Symbol {
    fn eq(&self, other: &Self) -> bool {
        same_name(&self.0, &other.0)
    }
}

impl Eq for Symbol {}

/// An integer beyond `i64`. `Value::from(num_bigint::BigInt)` creates it and chooses the kind, so that
/// each integer has one representation, and equality stays simple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BigInt(Arc<num_bigint::BigInt>);

impl BigInt {
    /// Creates an integer that does not fit `i64`, as `Value::from` has checked.
    pub(crate) fn new(integer: num_bigint::BigInt) -> Self {
        Self(Arc::new(integer))
    }

    /// Returns the number.
    pub fn get(&self) -> &num_bigint::BigInt {
        &self.0
    }
}

/// A text. Indices count characters (code points), so it stores their number.
///
/// Most texts are a few bytes long. Texts of up to 14 bytes are stored in the value itself, and need no
/// allocation.
#[derive(Clone)]
pub struct Str(Repr);

#[derive(Clone)]
enum Repr {
    Long(Arc<Text>),
    /// The bytes beyond the length are zero.
    Short {
        len: u8,
        bytes: [u8; SHORT],
    },
}

/// The number of bytes that fit beside the kind and the length into the 16 bytes of a value.
const SHORT: usize = 14;

#[derive(Clone, Debug)]
struct Text {
    text: String,
    chars: usize,
}

impl Str {
    /// Creates a text and counts the characters.
    pub fn new(text: impl Into<String> + AsRef<str>) -> Self {
        Self::short(text.as_ref()).unwrap_or_else(|| {
            let text = text.into();
            let chars = text.chars().count();
            Self(Repr::Long(Arc::new(Text { text, chars })))
        })
    }

    #[inline]
    fn short(text: &str) -> Option<Self> {
        let [bytes @ .., _, _] = short_bits(text)?.to_le_bytes();
        Some(Self(Repr::Short { len: text.len() as u8, bytes }))
    }
    /// Appends in place if the text is not shared, else to a copy.
    pub(crate) fn push_str(&mut self, more: &str) {
        match &mut self.0 {
            Repr::Short { len, bytes } => {
                let (before, after) = (usize::from(*len), usize::from(*len) + more.len());
                match bytes.get_mut(before..after) {
                    Some(room) => {
                        room.copy_from_slice(more.as_bytes());
                        *len = after as u8;
                    }
                    None => *self = Self::new([self.as_str(), more].concat()),
                }
            }
            Repr::Long(text) => {
                let text = Arc::make_mut(text);
                text.text.push_str(more);
                text.chars += more.chars().count();
            }
        }
    }

    pub(crate) fn is_unique(&self) -> bool {
        match &self.0 {
            Repr::Short { .. } => true,
            Repr::Long(text) => Arc::is_unique(text),
        }
    }

    /// Returns whether the text is stored inline.
    #[inline(always)]
    pub(crate) fn is_short(&self) -> bool {
        matches!(self.0, Repr::Short { .. })
    }

    /// Returns the number of bytes that are allocated outside of the value.
    pub(crate) fn capacity(&self) -> usize {
        match &self.0 {
            Repr::Short { .. } => 0,
            Repr::Long(text) => text.text.capacity(),
        }
    }

    /// Returns the address of the shared data, and the number of its owners; `None` for an inline text.
    pub(crate) fn identity(&self) -> Option<(usize, usize)> {
        match &self.0 {
            Repr::Short { .. } => None,
            Repr::Long(text) => Some((Arc::as_ptr(text) as usize, Arc::count(text))),
        }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Short { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Long(text) => text.text.as_bytes(),
        }
    }

    /// Returns a text that could be stored inline as a number, regardless of its storage.
    #[inline]
    pub(crate) fn packed(&self) -> Option<u128> {
        let pack = |len: u8, bytes: &[u8; SHORT]| {
            let mut all = [0; 16];
            all[0] = len;
            all[1..=SHORT].copy_from_slice(bytes);
            u128::from_le_bytes(all)
        };
        match &self.0 {
            Repr::Short { len, bytes } => Some(pack(*len, bytes)),
            Repr::Long(text) => match Self::short(&text.text)?.0 {
                Repr::Short { len, bytes } => Some(pack(len, &bytes)),
                Repr::Long(_) => None,
            },
        }
    }

    /// Returns the text.
    #[inline]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            // Only whole texts were copied there, so the bytes are always valid.
            Repr::Short { len, bytes } => {
                std::str::from_utf8(&bytes[..usize::from(*len)]).unwrap_or_default()
            }
            Repr::Long(text) => &text.text,
        }
    }

    /// Returns the number of characters.
    pub fn char_count(&self) -> usize {
        match &self.0 {
            Repr::Short { .. } => self.as_str().chars().count(),
            Repr::Long(text) => text.chars,
        }
    }

    /// Returns whether each character is one byte, so that an index of characters is one of bytes.
    pub fn is_ascii(&self) -> bool {
        match &self.0 {
            Repr::Short { .. } => self.as_bytes().is_ascii(),
            Repr::Long(text) => text.chars == text.text.len(),
        }
    }
}

/// Returns the bytes of a text that fits into a value, as a number: with the length, it represents the
/// whole text.
#[inline]
pub(crate) fn short_bits(text: &str) -> Option<u128> {
    let text = text.as_bytes();
    if text.len() > SHORT {
        return None;
    }
    // The first and the last bytes, which may overlap, are loaded without a loop for any length.
    let bits = match (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        (Some(first), Some(last)) => {
            let last = u128::from(u64::from_le_bytes(*last));
            u128::from(u64::from_le_bytes(*first)) | last << (8 * (text.len() - 8))
        }
        _ => match (text.first_chunk::<4>(), text.last_chunk::<4>()) {
            (Some(first), Some(last)) => {
                let last = u128::from(u32::from_le_bytes(*last));
                u128::from(u32::from_le_bytes(*first)) | last << (8 * (text.len() - 4))
            }
            _ => text.iter().rev().fold(0, |bits, byte| bits << 8 | u128::from(*byte)),
        },
    };
    Some(bits)
}

impl PartialEq for Str {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Repr::Short { len: a, bytes: one }, Repr::Short { len: b, bytes: two }) => {
                a == b && one == two
            }
            (Repr::Long(a), Repr::Long(b)) => Arc::ptr_eq(a, b) || a.text == b.text,
            // A text that could be stored inline may have grown in place.
            _ => self.as_bytes() == other.as_bytes(),
        }
    }
}

impl Eq for Str {}

/// Agrees with the hash of its text.
impl Hash for Str {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write(self.as_bytes());
        state.write_u8(0xff);
    }
}

impl std::fmt::Debug for Str {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Str").field(&self.as_str()).finish()
    }
}

/// A point in time, from year 0 to 9999, to the nanosecond.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Arc<(i64, u32)>);

impl Instant {
    /// Creates an instant; `None` if the year is not within 0 to 9999, or `nanoseconds` is a second or
    /// more.
    pub fn from_unix(seconds: i64, nanoseconds: u32) -> Option<Self> {
        /// 0000-01-01T00:00:00Z to 9999-12-31T23:59:59Z.
        const RANGE: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;
        let valid = RANGE.contains(&seconds) && nanoseconds < 1_000_000_000;
        valid.then(|| Self(Arc::new((seconds, nanoseconds))))
    }

    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Returns the seconds since 1970-01-01T00:00:00Z, rounded down.
    pub fn unix_seconds(&self) -> i64 {
        self.0.0
    }

    /// Returns the nanoseconds since the beginning of that second.
    pub fn subsec_nanoseconds(&self) -> u32 {
        self.0.1
    }
}

/// A UUID of any version, ordered as its text is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(Arc<u128>);

impl Uuid {
    /// Returns the UUID of these bits, the first digit being the most significant.
    pub fn from_u128(bits: u128) -> Self {
        Self(Arc::new(bits))
    }

    /// Parses `550e8400-e29b-41d4-a716-446655440000`.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 36 {
            return None;
        }
        let digit = |bits: u128, (at, c): (usize, char)| match (at, c) {
            (8 | 13 | 18 | 23, '-') => Some(bits),
            (8 | 13 | 18 | 23, _) => None,
            (_, c) => Some(bits << 4 | u128::from(c.to_digit(16)?)),
        };
        text.char_indices().try_fold(0, digit).map(Self::from_u128)
    }

    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Returns the bits.
    pub fn as_u128(&self) -> u128 {
        *self.0
    }
}

/// Returns the hash that keywords cache and indices use.
pub(crate) fn hash_of(item: &(impl Hash + ?Sized)) -> u64 {
    static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::default);
    STATE.hash_one(item)
}
