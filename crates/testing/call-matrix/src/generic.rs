//! Calls that are made from the table's rules: buffers of the right size, and numbers that are refused.
//!
//! They end with an error, which must be the same natively. A row that is new in the table is tried at once.

use crate::call::Call;
use farshore_net::table::{Dir, Extent, Kind, Ptr};

/// Elements of an array of which a number says how many there are.
const COUNT: u32 = 40;

/// Whether a generic call can be made: the rules say what lies behind each pointer.
pub fn can_call(kind: &Kind) -> bool {
    matches!(kind, Kind::Pointers(_) | Kind::Refused(_))
}

/// Makes the arguments of a call: pointers by rule; counts as the rules say; everything else -1.
pub fn prepare(rules: &[Ptr], call: &mut Call) {
    for arg in 0..6u8 {
        let rule = rules.iter().find(|rule| rule.arg == arg);
        match rule {
            Some(rule) => pointer(rule, call),
            None => match rules.iter().find(|rule| length(rule) == Some(arg)) {
                Some(rule) if matches!(rule.extent, Extent::Behind { .. }) => {
                    call.input(&COUNT.to_ne_bytes());
                }
                Some(_) => {
                    call.number(COUNT);
                }
                None => {
                    call.number(-1);
                }
            },
        }
    }
}

/// The argument that says how long a pointer's memory is.
fn length(rule: &Ptr) -> Option<u8> {
    match rule.extent {
        Extent::Counted { by, .. } | Extent::Bits { by } | Extent::Pages { by } | Extent::Behind { by, .. } => Some(by),
        _ => None,
    }
}

fn pointer(rule: &Ptr, call: &mut Call) {
    let len = match rule.extent {
        Extent::Bytes(bytes) => bytes as usize,
        Extent::Counted { unit, plus, .. } => (plus + COUNT * unit) as usize,
        Extent::Bits { .. } | Extent::Pages { .. } => 8,
        Extent::Behind { .. } => COUNT as usize,
        Extent::Sized { .. } => 64,
        Extent::Text => {
            call.text("w-there-is/no-such-thing");
            return;
        }
    };
    // All ones: no valid time, flag or length.
    if rule.dir == Dir::Out {
        call.volatile_room(len)
    } else {
        call.input(&vec![0xff; len])
    };
}
