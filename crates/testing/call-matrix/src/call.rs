//! One call: its arguments, its buffers, and what is to be compared afterwards.

use std::ffi::CString;
use std::fmt::Write as _;
use std::ops::Range;

/// A number that no register has by chance.
const POISON: u8 = 0x5a;

/// An argument.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    /// A number.
    Number(u64),
    /// The address of a buffer.
    Buffer(usize),
}

/// What is compared of the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Returns {
    /// The number.
    Exact,
    /// A new descriptor, which is closed.
    Descriptor,
    /// A number that differs from run to run.
    Any,
}

/// Memory that the kernel gets the address of.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// What is there before the call.
    pub bytes: Vec<u8>,
    /// Where addresses of other buffers go.
    pub links: Vec<(usize, usize)>,
    /// Bytes that differ from run to run: only whether they were changed is compared.
    pub volatile: Vec<Range<usize>>,
    /// The address is a multiple of this.
    pub align: usize,
}

/// A structure that is being put together.
#[derive(Clone, Debug, Default)]
pub struct Structure {
    bytes: Vec<u8>,
    links: Vec<(usize, usize)>,
}

/// Does something just before the call.
type Before = Box<dyn FnOnce() -> Result<(), String>>;
/// Looks at the world after the call; text that is compared.
type After = Box<dyn FnOnce(&Done) -> String>;

/// What came of a call.
#[derive(Debug)]
pub struct Done {
    /// The kernel's answer.
    pub result: i64,
    /// What the buffers hold, as far as they exist.
    pub buffers: Vec<Vec<u8>>,
}

/// A call that is being prepared.
pub struct Call {
    /// Names in the run's directory begin with this: the same in each run.
    prefix: String,
    /// The arguments so far.
    pub args: Vec<Arg>,
    /// The buffers so far.
    pub buffers: Vec<Buffer>,
    /// What is compared of the result.
    pub returns: Returns,
    pub(crate) before: Vec<Before>,
    pub(crate) after: Vec<After>,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("args", &self.args).field("buffers", &self.buffers).finish_non_exhaustive()
    }
}

impl Call {
    /// A call without arguments.
    pub fn new(prefix: String) -> Call {
        Call { prefix, args: Vec::new(), buffers: Vec::new(), returns: Returns::Exact, before: Vec::new(), after: Vec::new() }
    }
    /// A name in the run's directory that is this call's alone.
    pub fn name(&self, what: &str) -> String {
        format!("{}-{what}", self.prefix)
    }
    /// The same for the kernel.
    pub fn path(&self, what: &str) -> CString {
        CString::new(self.name(what)).expect("names have no zero bytes")
    }

    // ---- arguments

    /// A number.
    pub fn number(&mut self, value: impl Into<i128>) -> &mut Call {
        // As a register holds it: negative numbers are sign-extended.
        self.args.push(Arg::Number(value.into() as u64));
        self
    }
    /// The address of a buffer that was placed before.
    pub fn at(&mut self, buffer: usize) -> &mut Call {
        self.args.push(Arg::Buffer(buffer));
        self
    }
    /// A buffer with these bytes.
    pub fn input(&mut self, bytes: &[u8]) -> &mut Call {
        let buffer = self.place(bytes);
        self.at(buffer)
    }
    /// A string.
    pub fn text(&mut self, text: &str) -> &mut Call {
        let buffer = self.place_text(text);
        self.at(buffer)
    }
    /// The name of [`Call::name`].
    pub fn own_name(&mut self, what: &str) -> &mut Call {
        let name = self.name(what);
        self.text(&name)
    }
    /// A structure.
    pub fn structure(&mut self, structure: Structure) -> &mut Call {
        let buffer = self.place_structure(structure);
        self.at(buffer)
    }
    /// Room for so many bytes, all of which are compared.
    pub fn room(&mut self, len: usize) -> &mut Call {
        self.input(&vec![POISON; len])
    }
    /// Room for so many bytes that differ from run to run.
    pub fn volatile_room(&mut self, len: usize) -> &mut Call {
        let buffer = self.place(&vec![POISON; len]);
        self.buffers[buffer].volatile = std::iter::once(0..len).collect();
        self.at(buffer)
    }

    // ---- buffers

    /// A buffer that is not an argument by itself.
    pub fn place(&mut self, bytes: &[u8]) -> usize {
        self.buffers.push(Buffer { bytes: bytes.to_vec(), links: Vec::new(), volatile: Vec::new(), align: 1 });
        self.buffers.len() - 1
    }
    /// Likewise, room.
    pub fn place_room(&mut self, len: usize) -> usize {
        self.place(&vec![POISON; len])
    }
    /// Likewise, a string.
    pub fn place_text(&mut self, text: &str) -> usize {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.place(&bytes)
    }
    /// Likewise, a structure.
    pub fn place_structure(&mut self, structure: Structure) -> usize {
        let buffer = self.place(&structure.bytes);
        self.buffers[buffer].links = structure.links;
        buffer
    }
    /// The address of the last buffer is a multiple of `align`.
    pub fn aligned(&mut self, align: usize) -> &mut Call {
        self.buffers.last_mut().expect("a buffer").align = align;
        self
    }
    /// Bytes of the last buffer that differ from run to run.
    pub fn volatile(&mut self, range: Range<usize>) -> &mut Call {
        self.buffers.last_mut().expect("a buffer").volatile.push(range);
        self
    }

    // ---- around the call

    /// Just before the call.
    pub fn before(&mut self, what: impl FnOnce() -> Result<(), String> + 'static) -> &mut Call {
        self.before.push(Box::new(what));
        self
    }
    /// After the call: text that is compared.
    pub fn after(&mut self, what: impl FnOnce(i64) -> String + 'static) -> &mut Call {
        self.after_with(move |done| what(done.result))
    }
    /// The same, with what the buffers hold.
    pub fn after_with(&mut self, what: impl FnOnce(&Done) -> String + 'static) -> &mut Call {
        self.after.push(Box::new(what));
        self
    }
    /// After the call, without a text.
    pub fn finally(&mut self, what: impl FnOnce() + 'static) -> &mut Call {
        self.after(move |_| {
            what();
            String::new()
        })
    }
    /// Keeps something until the call is over.
    pub fn keep(&mut self, thing: impl Sized + 'static) -> &mut Call {
        self.finally(move || drop(thing))
    }
    /// The result is a new descriptor.
    pub fn returns_descriptor(&mut self) -> &mut Call {
        self.returns = Returns::Descriptor;
        self
    }
    /// The result differs from run to run.
    pub fn returns_any(&mut self) -> &mut Call {
        self.returns = Returns::Any;
        self
    }
}

impl Structure {
    /// Nothing yet.
    pub fn new() -> Structure {
        Structure::default()
    }
    /// Bytes.
    pub fn bytes(mut self, bytes: &[u8]) -> Structure {
        self.bytes.extend_from_slice(bytes);
        self
    }
    /// A 16-bit number.
    pub fn u16(self, value: u16) -> Structure {
        self.bytes(&value.to_ne_bytes())
    }
    /// A 32-bit number.
    pub fn u32(self, value: u32) -> Structure {
        self.bytes(&value.to_ne_bytes())
    }
    /// A 64-bit number.
    pub fn u64(self, value: u64) -> Structure {
        self.bytes(&value.to_ne_bytes())
    }
    /// Zeros.
    pub fn zeros(self, count: usize) -> Structure {
        self.bytes(&vec![0; count])
    }
    /// Another structure behind.
    pub fn append(mut self, other: Structure) -> Structure {
        let start = self.bytes.len();
        self.links.extend(other.links.iter().map(|&(at, buffer)| (start + at, buffer)));
        self.bytes(&other.bytes)
    }
    /// The address of a buffer.
    pub fn pointer(mut self, buffer: usize) -> Structure {
        self.links.push((self.bytes.len(), buffer));
        self.u64(0)
    }
}

/// What a buffer holds, as text that is the same in each run.
pub fn describe(buffer: &Buffer, before: &[u8], now: &[u8]) -> String {
    let mut bytes = now.to_vec();
    let mut changed = String::new();
    for range in &buffer.volatile {
        changed.push(if now[range.clone()] == before[range.clone()] { '=' } else { '!' });
        bytes[range.clone()].fill(0);
    }
    // Addresses differ from run to run; that they are still there is checked by whoever calls this.
    for &(offset, _) in &buffer.links {
        bytes[offset..offset + 8].fill(0);
    }
    let mut text = String::new();
    if bytes.len() <= 48 {
        bytes.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
    } else {
        _ = write!(text, "{}:{:016x}", bytes.len(), digest(&bytes));
    }
    if changed.is_empty() { text } else { format!("{text}{changed}") }
}

/// FNV-1a.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
