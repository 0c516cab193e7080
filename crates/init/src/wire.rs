//! Encoding of plans and messages, by hand: the static launcher has no serde. Decoding never panics
//! and never allocates more than the input could fill.

use std::ffi::CString;

/// Bytes that could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError;

/// A type with an encoding.
pub trait Wire: Sized {
    /// Appends its encoding.
    fn put(&self, out: &mut Vec<u8>);
    /// Decodes it from the front.
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError>;
}

/// Encodes a value.
pub fn encode<T: Wire>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

/// Decodes a value from all of the bytes.
pub fn decode<T: Wire>(mut input: &[u8]) -> Result<T, DecodeError> {
    let value = T::get(&mut input)?;
    if input.is_empty() {
        Ok(value)
    } else {
        Err(DecodeError)
    }
}

fn take<'a>(input: &mut &'a [u8], count: usize) -> Result<&'a [u8], DecodeError> {
    let (front, rest) = input.split_at_checked(count).ok_or(DecodeError)?;
    *input = rest;
    Ok(front)
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
            fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
                let bytes = take(input, size_of::<$number>())?;
                Ok(<$number>::from_le_bytes(bytes.try_into().map_err(|_| DecodeError)?))
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64, i32);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::get(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError),
        }
    }
}

impl Wire for CString {
    fn put(&self, out: &mut Vec<u8>) {
        (self.as_bytes().len() as u32).put(out);
        out.extend(self.as_bytes());
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let count = u32::get(input)? as usize;
        CString::new(take(input, count)?).map_err(|_| DecodeError)
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend(self.as_bytes());
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let count = u32::get(input)? as usize;
        String::from_utf8(take(input, count)?.to_vec()).map_err(|_| DecodeError)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        // No capacity is reserved for a length that the input claims.
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
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        bool::get(input)?.then(|| T::get(input)).transpose()
    }
}

/// Implements the encoding of a struct: its fields, in order.
#[macro_export]
macro_rules! wire_struct {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::wire::Wire::put(&self.$field, out);)*
            }
            fn get(input: &mut &[u8]) -> Result<Self, $crate::wire::DecodeError> {
                Ok($name { $($field: $crate::wire::Wire::get(input)?,)* })
            }
        }
    };
}

/// Implements the encoding of an enum without data: the number of the variant.
#[macro_export]
macro_rules! wire_enum {
    ($name:ident { $($variant:ident = $number:literal),* $(,)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(match self { $($name::$variant => $number,)* });
            }
            fn get(input: &mut &[u8]) -> Result<Self, $crate::wire::DecodeError> {
                match <u8 as $crate::wire::Wire>::get(input)? {
                    $($number => Ok($name::$variant),)*
                    _ => Err($crate::wire::DecodeError),
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{NamespacePoolPlan, tests::ids},
        protocol::{
            InterceptHandles, LauncherRequest, Payload, ProcessExit, Report, SandboxCommand,
        },
        step::{Step, StepFailure, Steps},
    };
    use proptest::prelude::*;
    use std::fmt::Debug;

    fn every_cut_is_refused<T: Wire + PartialEq + Debug>(value: &T) -> Result<(), TestCaseError> {
        let bytes = encode(value);
        let read = decode::<T>(&bytes);
        prop_assert_eq!(read.as_ref(), Ok(value));
        prop_assert!((0..bytes.len()).all(|end| decode::<T>(&bytes[..end]).is_err()));
        Ok(())
    }

    /// Every byte of an accepted input is used.
    fn takes_every_byte<T: Wire>(bytes: &[u8]) -> Result<(), TestCaseError> {
        if let Ok(value) = decode::<T>(bytes) {
            prop_assert_eq!(encode(&value).len(), bytes.len());
        }
        Ok(())
    }

    fn report() -> impl Strategy<Value = Report> {
        let steps = any::<u64>().prop_map(Steps::from_bits);
        let ended = any::<(i32, u64, u64, bool)>();
        let ended = ended.prop_map(|(status, cpu_us, peak_bytes, alone)| ProcessExit {
            status,
            cpu_us,
            peak_bytes,
            alone,
        });
        let step = prop::sample::select(Step::ALL.to_vec());
        let failure = (step, any::<i32>(), ".{0,8}");
        let arriving = any::<(u32, u32, Option<i32>)>();
        let arriving =
            arriving.prop_map(
                |(listeners, dns_sockets, redirect_errno)| InterceptHandles {
                    listeners,
                    dns_sockets,
                    redirect_errno,
                },
            );
        prop_oneof![
            steps.clone().prop_map(Report::Hello),
            steps.clone().prop_map(Report::Started),
            (
                steps,
                ids(),
                prop::collection::vec(any::<u32>(), 0..4),
                prop::collection::vec(
                    "/[a-z ]{0,9}".prop_map(|path| CString::new(path).unwrap()),
                    0..3
                ),
                arriving.clone()
            )
                .prop_map(|(steps, ids, unmapped, covered, intercept)| Report::Ready {
                    steps,
                    ids,
                    unmapped,
                    covered,
                    intercept
                }),
            arriving.prop_map(Report::NetworkReady),
            ended.clone().prop_map(Report::Ended),
            ended.prop_map(Report::Gone),
            failure.prop_map(|(step, errno, detail)| Report::Failed(StepFailure {
                step,
                errno,
                detail
            })),
        ]
    }

    #[test]
    fn a_length_that_the_input_cannot_fill_is_refused_before_memory_is_taken() {
        let length = u32::MAX.to_le_bytes();
        assert_eq!(decode::<CString>(&length), Err(DecodeError));
        assert_eq!(decode::<String>(&length), Err(DecodeError));
        assert_eq!(decode::<Vec<u64>>(&length), Err(DecodeError));
        assert_eq!(decode::<Vec<u64>>(&0u32.to_le_bytes()), Ok(Vec::new()));
    }

    #[test]
    fn a_plan_travels_in_its_message_or_in_a_file() {
        for (length, has_file) in [(10, false), (100 << 10, true)] {
            let plan = "x".repeat(length);
            let (brief, file) = Payload::new(&plan).unwrap();
            assert_eq!(file.is_some(), has_file);
            let mut files = file.into_iter().collect();
            assert_eq!(brief.read::<String>(&mut files).unwrap(), plan);
            assert!(files.is_empty());
            assert_eq!(brief.read::<String>(&mut files).is_ok(), !has_file);
        }
    }

    #[test]
    fn text_that_its_type_cannot_hold_is_refused() {
        let bytes = |text: &[u8]| [&(text.len() as u32).to_le_bytes(), text].concat();
        assert_eq!(decode::<CString>(&bytes(b"a\0b")), Err(DecodeError));
        assert_eq!(decode::<String>(&bytes(b"a\xff")), Err(DecodeError));
        assert_eq!(decode::<bool>(&[2]), Err(DecodeError));
        assert_eq!(decode(&bytes(b"a\xff")), Ok(c"a\xff".to_owned()));
        assert_eq!(decode(&bytes(b"a\0b")), Ok("a\0b".to_owned()));
        assert_eq!(decode(&[1]), Ok(true));
    }

    proptest! {
        #[test]
        fn messages_travel_whole_or_not_at_all(report in report(), ids in ids(), cgroup: bool, signal: i32) {
            every_cut_is_refused(&report)?;
            let (plan, file) = Payload::new(&ids).unwrap();
            prop_assert!(file.is_none());
            every_cut_is_refused(&LauncherRequest::Template { plan: plan.clone(), first: Some(ids) })?;
            every_cut_is_refused(&LauncherRequest::Sandbox { plan: plan.clone(), cgroup })?;
            every_cut_is_refused(&LauncherRequest::CgroupForker)?;
            every_cut_is_refused(&LauncherRequest::NamespacePool(NamespacePoolPlan { depth: 8, ids, outer_count: 1, first_turn: 0 }))?;
            every_cut_is_refused(&SandboxCommand::Signal(signal))?;
            every_cut_is_refused(&SandboxCommand::Exec(plan.clone()))?;
            every_cut_is_refused(&SandboxCommand::Prepare(plan))?;
            every_cut_is_refused(&SandboxCommand::Destroy)?;
        }

        #[test]
        fn no_bytes_make_a_message_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            takes_every_byte::<LauncherRequest>(&bytes)?;
            takes_every_byte::<SandboxCommand>(&bytes)?;
            takes_every_byte::<Report>(&bytes)?;
        }
    }
}
