//! Which windows are used in an image, and which sites are left alone.

use crate::functions::Functions;
use crate::image::{Image, Text};
use crate::listed;
use crate::numbers::{number_of, sets_sigreturn};
use crate::search::targets_inside;
use crate::window::{WINDOW_MOST, Window};
use crate::{ANY_NUMBER, JUMP_LENGTH};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
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
            targets_inside(text, &mut code, |at| functions.is_inside_instruction(text, at))
        } else {
            code.targets.sort_unstable();
            std::mem::take(&mut code.targets)
        };
        let first = self.windows.len();
        for site in &code.sites {
            if let Some(reason) = site.left {
                self.left.push((reason, site.number));
                continue;
            }
            let is_free = |choice: &&Choice| {
                let hit = targets.partition_point(|&target| target < choice.inside().start);
                let jumped_into = targets.get(hit).is_some_and(|target| choice.inside().contains(target));
                // Sites of one function come in order, and functions do not overlap; so only the last can be in the way.
                let overlaps = |other: &Window| other.range.start < choice.range.end && choice.range.start < other.range.end;
                !jumped_into && !self.windows[first..].iter().rev().take(4).any(overlaps)
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
        let instructions: Vec<Instruction> = Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE).iter().collect();
        let at = instructions.iter().position(|i| i.next_ip() == site && i.mnemonic() == Mnemonic::Syscall)?;
        number_of(&instructions, at, &[])
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
    /// Those of the function that is being read.
    instructions: Vec<Instruction>,
}

/// How many instructions before and after the `syscall`, the best first.
const SHAPES: [(usize, usize); 9] = [(0, 1), (1, 0), (0, 2), (1, 1), (2, 0), (0, 3), (1, 2), (2, 1), (3, 0)];

impl Code {
    /// Adds the sites of a function. False: it cannot be read.
    fn read_function(&mut self, function: &Range<u64>, bytes: &[u8]) -> bool {
        let mut decoder = Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE);
        let instructions = &mut self.instructions;
        instructions.clear();
        instructions.extend(decoder.iter());
        if instructions.iter().any(Instruction::is_invalid) {
            return false;
        }
        self.decoded.push(function.clone());
        let direct = instructions.iter().filter(|i| matches!(i.op0_kind(), OpKind::NearBranch64 | OpKind::NearBranch32));
        let first_target = self.targets.len();
        self.targets.extend(direct.map(Instruction::near_branch_target));
        let calls = (0..instructions.len()).filter(|&index| instructions[index].mnemonic() == Mnemonic::Syscall);
        let is_indirect = instructions.iter().any(|instruction| instruction.flow_control() == FlowControl::IndirectBranch);
        for call in calls {
            if sets_sigreturn(&instructions[..call]) {
                self.restorers += 1;
                continue;
            }
            let number = number_of(instructions, call, &self.targets[first_target..]).unwrap_or(ANY_NUMBER);
            let first = self.choices.len();
            if !is_indirect {
                self.choices.extend(SHAPES.iter().filter_map(|&shape| choice(instructions, call, shape)));
            }
            let left = is_indirect.then_some(Left::Indirect);
            self.sites.push(Site { end: instructions[call].next_ip(), number, left, choices: first..self.choices.len() });
        }
        true
    }
}

/// The window of this shape, if its length is right and all in it can be moved.
fn choice(instructions: &[Instruction], call: usize, (before, after): (usize, usize)) -> Option<Choice> {
    let first = call.checked_sub(before)?;
    let before = &instructions[first..call];
    let after = instructions.get(call + 1..=call + after)?;
    let end = after.last().unwrap_or(&instructions[call]).next_ip();
    let range = instructions[first].ip()..end;
    let fits = (JUMP_LENGTH as u64..=WINDOW_MOST as u64).contains(&(range.end - range.start));
    (fits && before.iter().chain(after).all(is_movable)).then_some(Choice { range })
}

fn is_movable(instruction: &Instruction) -> bool {
    let changes_rsp = instruction.is_stack_instruction()
        || instruction.op0_kind() == OpKind::Register && instruction.op0_register().full_register() == Register::RSP
        || instruction.mnemonic() == Mnemonic::Xchg && instruction.op1_register().full_register() == Register::RSP;
    instruction.flow_control() == FlowControl::Next
        && !changes_rsp
        // Relative to the lower half of `rip`: too near to anything.
        && instruction.memory_base() != Register::EIP
        && !matches!(instruction.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Endbr32 | Mnemonic::Syscall)
}

#[cfg(test)]
mod tests;
