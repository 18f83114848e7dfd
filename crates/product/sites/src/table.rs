//! Plans as bytes, to be put into the library when it is built.
//!
//! All numbers are little-endian. Addresses are as in the file, so an image's bias comes on top.
//!
//! ```text
//! table   magic, 16 bytes; images (4 bytes), and each of them
//! image   bytes of what follows (4); build id: length (1), bytes; texts (1), each: start (4), length (4);
//!         restorers (4); unknown (4); sites that are left (4), each: reason (1), number (4); windows (4), each of them
//! window  start (4); length (1); end of the syscall from start (1); number (4); fix-ups (1), each: at (1), next (1); the bytes
//! ```

use crate::image::{Image, section};
use crate::window::{Fixup, Window};
use crate::{ANY_NUMBER, Left, Plan};

/// The section of the library that is a table.
pub const SECTION: &str = "farshore_sites";

const MAGIC: [u8; 16] = *b"farshore sites 1";
/// Stands for [`ANY_NUMBER`].
const ANY: u32 = u32::MAX;

/// Plans by build id.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(&'a [u8]);

impl<'a> Table<'a> {
    /// The table in these bytes, if they are one of this version.
    pub fn new(bytes: &'a [u8]) -> Option<Table<'a>> {
        bytes.strip_prefix(&MAGIC).map(Table)
    }

    /// The table in the file of a library.
    pub fn in_file(file: &'a [u8]) -> Option<Table<'a>> {
        Table::new(section(file, SECTION)?)
    }

    /// What is known of the image with this build id.
    pub fn find(&self, build_id: &[u8]) -> Option<Known<'a>> {
        let mut all = Reader(self.0);
        for _ in 0..all.u32()? {
            let length = all.u32()? as usize;
            let mut image = Reader(all.take(length)?);
            let length = image.u8()?;
            if image.take(length.into())? == build_id {
                return Some(Known(image));
            }
        }
        None
    }
}

/// What is known of an image.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a>(Reader<'a>);

impl Known<'_> {
    /// The plan for the image, if it is laid out as the one that was planned for: for the calls that are wanted. Whether its bytes are the same must be
    /// asked for each window that is used ([`Image::agrees_with`]).
    pub fn plan_for(&self, image: &Image<'_>, wanted: &dyn Fn(u64) -> bool) -> Option<Plan> {
        let mut record = self.0;
        let bias = image.bias();
        if usize::from(record.u8()?) != image.texts().len() {
            return None;
        }
        for text in image.texts() {
            let start = bias.wrapping_add(record.u32()?.into());
            if *text != (start..start.checked_add(record.u32()?.into())?) {
                return None;
            }
        }
        let mut plan = Plan { restorers: record.u32()? as usize, unknown: record.u32()? as usize, ..Plan::default() };
        for _ in 0..record.u32()? {
            let reason = if record.u8()? == 0 { Left::Indirect } else { Left::Windowless };
            let number = record.number()?;
            if wanted(number) {
                plan.left.push((reason, number));
            } else {
                plan.unwanted += 1;
            }
        }
        for _ in 0..record.u32()? {
            let start = bias.wrapping_add(record.u32()?.into());
            let (length, end) = (record.u8()?, record.u8()?);
            let number = record.number()?;
            let count = record.u8()?;
            let (fixups, _) = record.take(usize::from(count) * 2)?.as_chunks::<2>();
            let bytes = record.take(length.into())?;
            if !wanted(number) {
                plan.unwanted += 1;
                continue;
            }
            let mut all = [Fixup::default(); 3];
            let all = all.get_mut(..fixups.len())?;
            all.iter_mut().zip(fixups).for_each(|(fixup, &[at, next])| *fixup = Fixup { at, next });
            plan.windows.push(Window::new(start, bytes, start.checked_add(end.into())?, number, all)?);
        }
        Some(plan)
    }
}

/// Takes numbers from the front.
#[derive(Clone, Copy, Debug)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn number(&mut self) -> Option<u64> {
        self.u32().map(|number| if number == ANY { ANY_NUMBER } else { number.into() })
    }
}

/// A table being made.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    images: u32,
    bytes: Vec<u8>,
}

impl Writer {
    /// Adds the plan for an image. `None`, and nothing is added: it has no build id, or something in it is too large for a table.
    pub fn add(&mut self, image: &Image<'_>, plan: &Plan) -> Option<()> {
        let build_id = image.build_id()?;
        let mut record = vec![u8::try_from(build_id.len()).ok()?];
        record.extend(build_id);
        let address = |at: u64| u32::try_from(at.wrapping_sub(image.bias())).ok();
        let number =
            |number: u64| if number == ANY_NUMBER { Some(ANY) } else { u32::try_from(number).ok().filter(|&n| n != ANY) };
        let mut push = |bytes: &[u8]| record.extend(bytes);
        push(&[u8::try_from(image.texts().len()).ok()?]);
        for text in image.texts() {
            push(&address(text.start)?.to_le_bytes());
            push(&u32::try_from(text.end - text.start).ok()?.to_le_bytes());
        }
        for count in [plan.restorers, plan.unknown, plan.left.len()] {
            push(&u32::try_from(count).ok()?.to_le_bytes());
        }
        for &(reason, left) in &plan.left {
            push(&[u8::from(reason == Left::Windowless)]);
            push(&number(left)?.to_le_bytes());
        }
        push(&u32::try_from(plan.windows.len()).ok()?.to_le_bytes());
        for window in &plan.windows {
            let end = u8::try_from(window.site - window.range.start).ok()?;
            push(&address(window.range.start)?.to_le_bytes());
            push(&[window.bytes().len() as u8, end]);
            push(&number(window.number)?.to_le_bytes());
            push(&[window.fixups().len() as u8]);
            window.fixups().iter().for_each(|fixup| push(&[fixup.at, fixup.next]));
            push(window.bytes());
        }
        self.bytes.extend(u32::try_from(record.len()).ok()?.to_le_bytes());
        self.images += 1;
        self.bytes.extend(record);
        Some(())
    }

    /// The table.
    pub fn finish(self) -> Vec<u8> {
        [&MAGIC[..], &self.images.to_le_bytes(), &self.bytes].concat()
    }
}
