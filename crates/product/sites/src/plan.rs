//! Which windows are used in an image, and which sites are left alone.

use crate::decode::{Flow, Instruction, Instructions, Kind};
use crate::functions::Functions;
use crate::image::{Image, Text};
use crate::listed;
use crate::numbers::{number_of, sets_sigreturn};
use crate::search::{Target, targets_inside};
use crate::window::{WINDOW_MOST, Window};
use crate::{ANY_NUMBER, JUMP_LENGTH};
use std::ops::Range;

/// Why a site is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It is in a function with indirect jumps.
    Indirect,
    /// No window of movable instructions that nobody jumps into.
    Windowless,
}

/// What is done with the sites of an image.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Those that are patched. No two overlap.
    pub windows: Vec<Window>,
    /// Those that are not, with the numbers of the calls.
    pub left: Vec<(Left, u64)>,
    /// Restorers of signal handlers, which are never patched.
    pub restorers: usize,
    /// Those of calls that nobody wants to see.
    pub unwanted: usize,
    /// Bytes of a `syscall` of which it is not known what they are, functions with some that cannot be read, and one for code
    /// that is hidden ([`Image::hides_text`]).
    pub unknown: usize,
}

impl Plan {
    /// The plan for all sites of an image; `None`: nobody can tell where its functions are.
    pub fn of(image: &Image<'_>) -> Option<Plan> {
        Some(Plan::with(image, &image.functions()?, true))
    }

    /// The plan for a program that may have no table of its functions in memory, from its whole `file`; `None`: nobody can tell where they are,
    /// or there is nothing that can be patched.
    pub fn of_program(image: &Image<'_>, file: &[u8]) -> Option<Plan> {
        let by_table = Plan::of(image).into_iter();
        let by_lists = listed::all(image, file).map(|(functions, searched)| Plan::with(image, &functions, searched));
        // A list may be there and name next to nothing: musl's code has no unwind information, what the compiler adds to it has.
        by_table.chain(by_lists).find(|plan| !plan.windows.is_empty())
    }

    /// `searched`: code outside of the functions may jump into them.
    fn with(image: &Image<'_>, functions: &Functions<'_>, searched: bool) -> Plan {
        let mut plan = Plan { unknown: functions.unknown + usize::from(image.hides_text()), ..Plan::default() };
        for text in image.texts().iter().filter_map(|range| image.text(range)) {
            plan.add(&text, functions, searched);
        }
        plan
    }

    /// Leaves only the sites of calls that are wanted.
    pub fn keep(mut self, wanted: &dyn Fn(u64) -> bool) -> Plan {
        let all = self.windows.len() + self.left.len();
        self.windows.retain(|window| wanted(window.number));
        self.left.retain(|&(_, number)| wanted(number));
        self.unwanted += all - self.windows.len() - self.left.len();
        self
    }

    /// Whether there are calls in it, or may be: as [`Image::may_call`] for those that were wanted.
    pub fn may_call(&self) -> bool {
        self.unknown > 0 || !self.windows.is_empty() || !self.left.is_empty()
    }

    /// Adds the sites of `text`.
    pub(crate) fn add(&mut self, text: &Text<'_>, functions: &Functions<'_>, searched: bool) {
        let mut code = Code::default();
        for function in &functions.all {
            if let Some(bytes) = text.slice(function)
                && !code.read_function(function, bytes)
            {
                self.unknown += 1;
            }
        }
        let targets = if searched {
            targets_inside(text, &mut code)
        } else {
            let mut targets: Vec<Target> = code.targets.iter().map(|&to| Target { to, from: None }).collect();
            targets.sort_unstable();
            targets
        };
        // Whether there is a jump at all is asked last: the function that the bytes are in has to be decoded for that.
        let is_one = |target: &Target| target.from.is_none_or(|from| !functions.is_inside_instruction(text, from));
        let first = self.windows.len();
        for site in &code.sites {
            if let Some(reason) = site.left {
                self.left.push((reason, site.number));
                continue;
            }
            let is_free = |choice: &&Choice| {
                let hit = targets.partition_point(|target| target.to < choice.inside().start);
                let mut into = targets[hit..].iter().take_while(|target| target.to < choice.inside().end);
                // Sites of one function come in order, and functions do not overlap; so only the last can be in the way.
                let overlaps = |other: &Window| other.range.start < choice.range.end && choice.range.start < other.range.end;
                !into.any(is_one) && !self.windows[first..].iter().rev().take(4).any(overlaps)
            };
            let window = code.choices[site.choices.clone()]
                .iter()
                .filter(is_free)
                .find_map(|choice| Window::decoded(choice.range.start, text.slice(&choice.range)?, site.end, site.number));
            match window {
                Some(window) => self.windows.push(window),
                None => self.left.push((Left::Windowless, site.number)),
            }
        }
        self.restorers += code.restorers;
    }
}

/// Bytes of a text that are looked at together for calls.
const PIECE: u64 = 1 << 20;

impl Image<'_> {
    /// Whether its code may make one of these calls. Text is looked at piece by piece, as the answer is often in the first: a program may have hundreds of megabytes.
    pub fn may_call(&self, wanted: &dyn Fn(u64) -> bool) -> bool {
        let mut pieces = self.texts().iter().flat_map(|text| {
            // (The last byte of a piece is the first of the next: calls have two.)
            let piece = |start: u64| start..text.end.min(start + PIECE + 1);
            text.clone().step_by(PIECE as usize).map(piece)
        });
        self.hides_text() || pieces.any(|piece| self.piece_may_call(piece, wanted))
    }

    fn piece_may_call(&self, piece: Range<u64>, wanted: &dyn Fn(u64) -> bool) -> bool {
        let Some(functions) = self.functions_of(&[piece]).filter(|functions| functions.unknown == 0) else { return true };
        let mut code = Code::default();
        let mut texts = functions.all.iter().map(|function| (function, self.text(function)));
        let all_read = texts.all(|(function, text)| text.is_none_or(|text| code.read_function(function, text.bytes)));
        !all_read || code.sites.iter().any(|site| wanted(site.number))
    }

    /// The number of the call whose `syscall` ends at `site`; `None`: it is not known.
    pub fn number_before(&self, site: u64) -> Option<u64> {
        let functions = self.functions()?;
        let function = functions.all.iter().find(|function| function.start < site && site <= function.end)?;
        let bytes = self.memory().bytes(function.start, function.end - function.start)?;
        let mut starts = Vec::new();
        let mut all = Instructions::new(bytes, function.start).map_while(|instruction| instruction);
        let at = all.position(|instruction| {
            starts.push((instruction.ip - function.start) as u32);
            instruction.next_ip() == site && instruction.kind() == Kind::Syscall
        })?;
        number_of(&Function { start: function.start, bytes, starts: &starts }, at, &[])
    }
}

/// A `syscall` that is no restorer's.
pub(crate) struct Site {
    /// Behind it.
    end: u64,
    number: u64,
    left: Option<Left>,
    /// Its windows, the best first.
    pub(crate) choices: Range<usize>,
}

/// What could be a window.
pub(crate) struct Choice {
    range: Range<u64>,
}

impl Choice {
    /// Starts of instructions but the first: nobody may jump to these, nor into the middle of an instruction.
    pub(crate) fn inside(&self) -> Range<u64> {
        self.range.start + 1..self.range.end
    }
}

/// What the functions of a text say about it.
#[derive(Default)]
pub(crate) struct Code {
    pub(crate) sites: Vec<Site>,
    pub(crate) choices: Vec<Choice>,
    restorers: usize,
    /// Functions that were decoded, in order, and the targets of all jumps and calls in them.
    pub(crate) decoded: Vec<Range<u64>>,
    pub(crate) targets: Vec<u64>,
    /// Where the instructions of the function begin that is being read, and which of them are calls.
    starts: Vec<u32>,
    calls: Vec<usize>,
}

/// How many instructions before and after the `syscall`, the best first.
const SHAPES: [(usize, usize); 9] = [(0, 1), (1, 0), (0, 2), (1, 1), (2, 0), (0, 3), (1, 2), (2, 1), (3, 0)];

impl Code {
    /// Adds the sites of a function. False: it cannot be read.
    fn read_function(&mut self, function: &Range<u64>, bytes: &[u8]) -> bool {
        let Code { starts, calls, targets, .. } = self;
        starts.clear();
        calls.clear();
        let first_target = targets.len();
        let mut is_indirect = false;
        // Of each instruction little is needed, and most of it never leaves the registers. What is around a call is decoded again.
        for instruction in Instructions::new(bytes, function.start) {
            let Some(instruction) = instruction else {
                targets.truncate(first_target);
                return false;
            };
            if instruction.leads() {
                match instruction.flow() {
                    Flow::Indirect => is_indirect = true,
                    Flow::Call if instruction.kind() == Kind::Syscall => calls.push(starts.len()),
                    _ => targets.extend(instruction.target()),
                }
            }
            starts.push((instruction.ip - function.start) as u32);
        }
        self.decoded.push(function.clone());
        let all = Function { start: function.start, bytes, starts };
        for &call in &*calls {
            if sets_sigreturn(&all, call) {
                self.restorers += 1;
                continue;
            }
            let number = number_of(&all, call, &targets[first_target..]).unwrap_or(ANY_NUMBER);
            let first = self.choices.len();
            if !is_indirect {
                self.choices.extend(SHAPES.iter().filter_map(|&shape| choice(&all, call, shape)));
            }
            let left = is_indirect.then_some(Left::Indirect);
            self.sites.push(Site { end: all.end_of(call), number, left, choices: first..self.choices.len() });
        }
        true
    }
}

/// A function whose instructions are all known.
pub(crate) struct Function<'a> {
    start: u64,
    bytes: &'a [u8],
    /// Where each instruction begins.
    starts: &'a [u32],
}

impl<'a> Function<'a> {
    /// The instruction with this number.
    pub(crate) fn get(&self, index: usize) -> Option<Instruction> {
        let at = *self.starts.get(index)?;
        Instruction::decode(self.bytes.get(at as usize..)?, self.start + u64::from(at))
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = Instruction> + use<'a> {
        Instructions::new(self.bytes, self.start).map_while(|instruction| instruction)
    }

    fn start_of(&self, index: usize) -> u64 {
        self.start + u64::from(self.starts[index])
    }

    fn end_of(&self, index: usize) -> u64 {
        self.start + self.starts.get(index + 1).map_or(self.bytes.len() as u64, |&next| next.into())
    }
}

/// The window of this shape, if its length is right and all in it can be moved.
fn choice(function: &Function<'_>, call: usize, (before, after): (usize, usize)) -> Option<Choice> {
    let (first, last) = (call.checked_sub(before)?, call + after);
    if last >= function.starts.len() {
        return None;
    }
    let range = function.start_of(first)..function.end_of(last);
    let fits = (JUMP_LENGTH as u64..=WINDOW_MOST as u64).contains(&(range.end - range.start));
    let mut others = (first..call).chain(call + 1..=last);
    (fits && others.all(|index| function.get(index).is_some_and(|other| is_movable(&other)))).then_some(Choice { range })
}

fn is_movable(instruction: &Instruction) -> bool {
    const RSP: Option<u8> = Some(4);
    instruction.flow() == Flow::Next
        && !instruction.is_vex()
        && instruction.first_register() != RSP
        && (instruction.kind() != Kind::Exchange || instruction.exchanged() != RSP)
        // Relative to the lower half of `rip`: too near to anything.
        && !instruction.is_relative_to_half()
        && !matches!(instruction.kind(), Kind::Push | Kind::Pop | Kind::Stack | Kind::Landing | Kind::Syscall)
}

#[cfg(test)]
mod tests;
