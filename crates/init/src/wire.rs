//! Bytes for plans and messages, by hand: the static launcher carries no serde.
//! Decoding never panics and never allocates more than the input could fill.

use std::ffi::CString;

/// Why bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Something with a form in bytes.
pub trait Wire: Sized {
    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads it from the front.
    fn get(input: &mut &[u8]) -> Result<Self, Malformed>;
}

/// The bytes of a value.
pub fn encode<T: Wire>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

/// A value from all of the bytes.
pub fn decode<T: Wire>(mut input: &[u8]) -> Result<T, Malformed> {
    let value = T::get(&mut input)?;
    if input.is_empty() { Ok(value) } else { Err(Malformed) }
}

fn take<'a>(input: &mut &'a [u8], count: usize) -> Result<&'a [u8], Malformed> {
    let (front, rest) = input.split_at_checked(count).ok_or(Malformed)?;
    *input = rest;
    Ok(front)
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
            fn get(input: &mut &[u8]) -> Result<Self, Malformed> {
                let bytes = take(input, size_of::<$number>())?;
                Ok(<$number>::from_le_bytes(bytes.try_into().map_err(|_| Malformed)?))
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64, i32);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(input: &mut &[u8]) -> Result<Self, Malformed> {
        match u8::get(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
}

impl Wire for CString {
    fn put(&self, out: &mut Vec<u8>) {
        (self.as_bytes().len() as u32).put(out);
        out.extend(self.as_bytes());
    }
    fn get(input: &mut &[u8]) -> Result<Self, Malformed> {
        let count = u32::get(input)? as usize;
        CString::new(take(input, count)?).map_err(|_| Malformed)
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend(self.as_bytes());
    }
    fn get(input: &mut &[u8]) -> Result<Self, Malformed> {
        let count = u32::get(input)? as usize;
        String::from_utf8(take(input, count)?.to_vec()).map_err(|_| Malformed)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(input: &mut &[u8]) -> Result<Self, Malformed> {
        // No capacity is reserved on the word of the input.
        (0..u32::get(input)?).map(|_| T::get(input)).collect()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(input: &mut &[u8]) -> Result<Self, Malformed> {
        bool::get(input)?.then(|| T::get(input)).transpose()
    }
}

/// Gives a struct its form: its fields, in order.
#[macro_export]
macro_rules! wire_struct {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::wire::Wire::put(&self.$field, out);)*
            }
            fn get(input: &mut &[u8]) -> Result<Self, $crate::wire::Malformed> {
                Ok($name { $($field: $crate::wire::Wire::get(input)?,)* })
            }
        }
    };
}

/// Gives an enum without data its form: the number of the variant.
#[macro_export]
macro_rules! wire_enum {
    ($name:ident { $($variant:ident = $number:literal),* $(,)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(match self { $($name::$variant => $number,)* });
            }
            fn get(input: &mut &[u8]) -> Result<Self, $crate::wire::Malformed> {
                match <u8 as $crate::wire::Wire>::get(input)? {
                    $($number => Ok($name::$variant),)*
                    _ => Err($crate::wire::Malformed),
                }
            }
        }
    };
}
