//! The compilation of a table of actions into a BPF program: a balanced tree over the system call numbers.
//!
//! The kernel runs the filter for every number at installation to fill its bitmap, so the shape of
//! the program decides the cost of installing it; a tree is many times shorter to walk than a chain.

use libc::sock_filter;

/// What the filter does with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterAction {
    /// The call is executed.
    Allow,
    /// It fails with this error, without a notification: what C libraries try and do without.
    Errno(u16),
    /// The engine is notified, and responds with this error. Without an engine the call fails, too
    /// (ENOSYS).
    Refuse(u16),
    /// The engine is notified. It may refuse a call that would fail anyway, to report it; otherwise
    /// the kernel executes it.
    Watch,
    /// It kills the process.
    Kill,
    /// The first matching test decides, else the last action.
    Args(Vec<ArgumentTest>, Box<FilterAction>),
}

/// Tests 32 bits of one argument: right for flags and `int`; a pointer takes two tests, one in the
/// other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentTest {
    /// The argument, from 0.
    pub argument: u8,
    /// Its half.
    pub half: ArgumentHalf,
    /// The bits that are compared.
    pub mask: u32,
    /// Their expected value.
    pub value: u32,
    /// The action if they match.
    pub then: FilterAction,
}

/// A half of a 64-bit argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ArgumentHalf {
    /// All of an `int`.
    Low = 0,
    /// The part that only pointers and 64-bit numbers have. Both architectures are little-endian.
    High = 4,
}

pub(super) const LD: u16 = 0x20;
pub(super) const AND: u16 = 0x54;
pub(super) const JA: u16 = 0x05;
pub(super) const JEQ: u16 = 0x15;
pub(super) const JGE: u16 = 0x35;
pub(super) const RET: u16 = 0x06;

pub(super) const USER_NOTIFICATION: u32 = 0x7fc0_0000;

#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

/// On x86-64, this bit of a number means the x32 ABI.
pub(super) const X32: u32 = 0x4000_0000;

fn op(code: u16, k: u32) -> sock_filter {
    sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

impl FilterAction {
    /// The action for these arguments: what the filter does, for a process that got a notification.
    pub fn resolve(&self, arguments: &[u64; 6]) -> &FilterAction {
        let FilterAction::Args(tests, other) = self else {
            return self;
        };
        let holds = |test: &&ArgumentTest| {
            let argument = arguments[usize::from(test.argument)];
            let half = match test.half {
                ArgumentHalf::Low => argument as u32,
                ArgumentHalf::High => (argument >> 32) as u32,
            };
            half & test.mask == test.value
        };
        tests
            .iter()
            .find(holds)
            .map_or(&**other, |test| &test.then)
            .resolve(arguments)
    }

    /// The same without notifications: no weaker, only unreported.
    pub(super) fn without_listener(self) -> FilterAction {
        match self {
            FilterAction::Refuse(errno) => FilterAction::Errno(errno),
            FilterAction::Watch => FilterAction::Allow,
            FilterAction::Args(tests, other) => {
                let quiet = |test: ArgumentTest| ArgumentTest {
                    then: test.then.without_listener(),
                    ..test
                };
                FilterAction::Args(
                    tests.into_iter().map(quiet).collect(),
                    Box::new(other.without_listener()),
                )
            }
            FilterAction::Allow | FilterAction::Errno(_) | FilterAction::Kill => self,
        }
    }
}

fn leaf(action: &FilterAction) -> Vec<sock_filter> {
    match action {
        FilterAction::Allow => vec![op(RET, 0x7fff_0000)],
        FilterAction::Errno(errno) => vec![op(RET, 0x0005_0000 | u32::from(*errno))],
        FilterAction::Refuse(_) | FilterAction::Watch => vec![op(RET, USER_NOTIFICATION)],
        FilterAction::Kill => vec![op(RET, 0x8000_0000)],
        FilterAction::Args(tests, other) => {
            let mut out = vec![];
            for test in tests {
                let then = leaf(&test.then);
                let over = u8::try_from(then.len()).expect("a leaf is short");
                out.push(op(LD, 16 + 8 * u32::from(test.argument) + test.half as u32));
                out.push(op(AND, test.mask));
                out.push(jump(JEQ, test.value, 0, over));
                out.extend(then);
            }
            out.extend(leaf(other));
            out
        }
    }
}

fn tree(ranges: &[(u32, &FilterAction)]) -> Vec<sock_filter> {
    if let [(_, action)] = ranges {
        return leaf(action);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let first = tree(low);
    let rest = tree(high);
    // A conditional jump reaches 255 instructions, JA anywhere.
    let mut out = match u8::try_from(first.len()) {
        Ok(over) => vec![jump(JGE, high[0].0, over, 0)],
        Err(_) => vec![jump(JGE, high[0].0, 0, 1), op(JA, first.len() as u32)],
    };
    out.extend(first);
    out.extend(rest);
    out
}

/// Whether two actions compile to the same instructions: all notifications do.
fn compile_alike(one: &FilterAction, other: &FilterAction) -> bool {
    let notifies =
        |action: &FilterAction| matches!(action, FilterAction::Refuse(_) | FilterAction::Watch);
    one == other || notifies(one) && notifies(other)
}

/// Compiles `table[number]`; numbers above it get `other`; foreign ABIs and x32 kill the process.
pub fn compile(table: &[FilterAction], other: &FilterAction) -> Vec<sock_filter> {
    let numbers = (0u32..)
        .zip(table)
        .chain([(table.len() as u32, other), (X32, &FilterAction::Kill)]);
    let mut ranges: Vec<(u32, &FilterAction)> = vec![];
    for (number, action) in numbers {
        if ranges
            .last()
            .is_none_or(|(_, last)| !compile_alike(last, action))
        {
            ranges.push((number, action));
        }
    }
    // The architecture first: the same number is another call in a foreign ABI.
    let mut out = vec![
        op(LD, 4),
        jump(JEQ, ARCHITECTURE, 1, 0),
        op(RET, 0x8000_0000),
        op(LD, 0),
    ];
    out.extend(tree(&ranges));
    out
}
