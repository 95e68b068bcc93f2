//! Encodes numbers and texts as bytes.

use super::InvalidRun;

/// The written bytes.
#[derive(Default)]
pub(super) struct Output(pub(super) Vec<u8>);

impl Output {
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// Eight bytes, the least significant first.
    pub(super) fn fixed(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    /// Seven bits in each byte, the least significant first.
    pub(super) fn number(&mut self, number: u64) {
        let mut left = number;
        while left >= 0x80 {
            self.byte(left as u8 | 0x80);
            left >>= 7;
        }
        self.byte(left as u8);
    }

    pub(super) fn size(&mut self, number: usize) {
        self.number(number as u64);
    }

    /// Small numbers of either sign are short.
    pub(super) fn signed(&mut self, number: i64) {
        self.number((number << 1 ^ number >> 63) as u64);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.size(bytes.len());
        self.0.extend(bytes);
    }

    pub(super) fn optional(&mut self, number: Option<u64>) {
        match number {
            None => self.byte(0),
            Some(number) => {
                self.byte(1);
                self.number(number);
            }
        }
    }
}

/// The bytes to read, and the memory that their content may still take.
pub(super) struct Input<'b> {
    bytes: &'b [u8],
    room: usize,
}

impl<'b> Input<'b> {
    pub(super) fn new(bytes: &'b [u8], room: usize) -> Self {
        Self { bytes, room }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Reserves memory for an allocation.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), InvalidRun> {
        self.room =
            self.room.checked_sub(bytes).ok_or(InvalidRun("it needs more memory than it may use"))?;
        Ok(())
    }

    pub(super) fn take(&mut self, n: usize) -> Result<&'b [u8], InvalidRun> {
        let (taken, rest) = self.bytes.split_at_checked(n).ok_or(InvalidRun("it ends too early"))?;
        self.bytes = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, InvalidRun> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn flag(&mut self) -> Result<bool, InvalidRun> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(InvalidRun("a flag is neither 0 nor 1")),
        }
    }

    pub(super) fn fixed(&mut self) -> Result<u64, InvalidRun> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(number))
    }

    pub(super) fn number(&mut self) -> Result<u64, InvalidRun> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(InvalidRun("a number is too large"))
    }

    pub(super) fn signed(&mut self) -> Result<i64, InvalidRun> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(super) fn size(&mut self) -> Result<usize, InvalidRun> {
        usize::try_from(self.number()?).map_err(|_| InvalidRun("a number is too large"))
    }

    pub(super) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, InvalidRun> {
        T::try_from(self.number()?).map_err(|_| InvalidRun("a number is too large"))
    }

    /// Reads a count of items, each of which takes at least one byte, and `each` bytes of memory.
    pub(super) fn count(&mut self, each: usize) -> Result<usize, InvalidRun> {
        let n = self.size()?;
        if n > self.bytes.len() {
            return Err(InvalidRun("it ends too early"));
        }
        self.reserve(n.saturating_mul(each))?;
        Ok(n)
    }

    pub(super) fn text(&mut self) -> Result<&'b str, InvalidRun> {
        let n = self.count(1)?;
        std::str::from_utf8(self.take(n)?).map_err(|_| InvalidRun("a text is not UTF-8"))
    }

    pub(super) fn optional(&mut self) -> Result<Option<u64>, InvalidRun> {
        Ok(if self.flag()? { Some(self.number()?) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_come_back() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), i64::MAX as u64, u64::MAX] {
            let mut output = Output::default();
            output.number(number);
            output.signed(number as i64);
            let mut input = Input::new(&output.0, 0);
            assert_eq!((input.number(), input.signed()), (Ok(number), Ok(number as i64)));
            assert!(input.is_empty());
        }
    }

    #[test]
    fn truncated_and_oversized_numbers_are_errors() {
        for bytes in
            [&[][..], &[0x80], &[0xff; 10], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]]
        {
            assert!(Input::new(bytes, 0).number().is_err(), "{bytes:?}");
        }
        assert!(Input::new(&[5, b'a'], 100).text().is_err());
        assert!(Input::new(&[1, b'a'], 0).text().is_err());
    }
}
