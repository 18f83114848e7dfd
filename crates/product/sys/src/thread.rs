//! Threads of our own, made by `clone` itself and not by libc.
//!
//! libc's `pthread_create` allocates from the program's heap and takes libc's locks: impossible once the heap is managed, and
//! in a forked child, where another thread may have held those locks. So a thread of ours gets
//!
//! ```text
//!  ┌ guard ┬ stack ─────────┬ static thread-local storage ┬ TCB ┬ DTV ┐    one mapping, never managed
//!  └ 4 KiB ┴────────────────┴─────────────────────────────┴─────┴─────┘
//! ```
//!
//! The thread-local storage is a copy of what the first caller's was at that time, at the offsets that the dynamic linker gave each library, with a table of
//! its own (DTV) for code that asks by module. So `errno`, Rust's thread-locals and the stack protector work; what libc keeps behind
//! the TCB is zero. Such a thread may use what needs no thread of libc's: no locale, no `pthread_…`, no cancellation.
//!
//! A [`Home`] is the memory of one thread. A forked child has its parent's homes without their threads: it uses them again.
//!
//! Source: the x86-64 ABI's thread-local storage, variant II ("ELF Handling For Thread-Local Storage", Drepper).

use crate::lock::Mutex;
use crate::own::map_own;
use crate::raw::Errno;
use crate::{hosted, tls, vm};
use alloc_crate::boxed::Box;
use core::arch::global_asm;
use core::ffi::CStr;
use core::ptr::NonNull;

const PAGE: usize = 4096;
/// Static thread-local storage of all libraries that were there at the start: at most so many bytes.
const BELOW_MAX: usize = 1 << 20;
/// What glibc's headers of code compiled for x86-64 look at behind the thread pointer (`tcbhead_t` has 704 bytes).
const TCB_COPIED: usize = 704;
/// Room behind the thread pointer.
const TCB: usize = 4096;
/// Modules with thread-local storage that are looked at.
const MODULES_MAX: usize = 254;
/// An entry of the DTV for a module whose storage was not made yet.
const UNALLOCATED: usize = usize::MAX;

const CLONE_SETTLS: u64 = 0x80000;
const CLONE_FLAGS: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000 | CLONE_SETTLS;
const PR_SET_NAME: u64 = 15;
const SYS_PRCTL: u64 = 157;

/// Two words of a DTV: the module's storage, and what would have to be freed.
type DtvEntry = [usize; 2];

/// Memory for one thread: stack and thread-local storage.
pub struct Home {
    base: NonNull<u8>,
    stack: usize,
    template: &'static Template,
}

impl core::fmt::Debug for Home {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Home").field("base", &self.base).finish_non_exhaustive()
    }
}

// SAFETY: plain memory; `start`, which is unsafe, says which thread may use it when.
unsafe impl Send for Home {}
// SAFETY: as above.
unsafe impl Sync for Home {}

/// What the thread-local storage of a thread of ours begins with: that of the thread that made the first home, as it was then. Later it is
/// not looked at again: libc keeps a thread's DTV on the program's heap, which is managed.
struct Template {
    /// Bytes of static storage below the thread pointer, rounded up to pages, and not.
    below: usize,
    used: usize,
    /// That storage, and the TCB behind it.
    bytes: NonNull<u8>,
    /// Each module's storage as a distance below the thread pointer; 0: it has no static one.
    modules: [usize; MODULES_MAX],
    /// The first entry of the DTV: its generation.
    generation: DtvEntry,
}

// SAFETY: never changed once it is published; the memory is never unmapped.
unsafe impl Sync for Template {}
// SAFETY: as above.
unsafe impl Send for Template {}

static TEMPLATE: Mutex<Option<&'static Template>> = Mutex::new(None);

impl Template {
    /// The one template; made by the first caller, of its own storage.
    fn get() -> Result<&'static Template, Errno> {
        TEMPLATE.with(|place| match place {
            Some(template) => Ok(*template),
            None => {
                let template = Box::leak(Box::new(Template::of_this_thread()?));
                Ok(*place.insert(template))
            }
        })
    }

    fn of_this_thread() -> Result<Template, Errno> {
        let here = tls::thread_pointer() as usize;
        let mut modules = [0; MODULES_MAX];
        for (module, storage) in modules.iter_mut().zip(dtv_of(here)) {
            *module = here.checked_sub(storage).filter(|&distance| distance <= BELOW_MAX).unwrap_or(0);
        }
        let used = modules.iter().copied().max().unwrap_or(0);
        let below = used.next_multiple_of(PAGE);
        let bytes = map_own(below + TCB)?;
        let from = core::ptr::with_exposed_provenance::<u8>(here - used);
        // SAFETY: this thread's static storage from its lowest module to the thread pointer, and the head that every thread of libc's, and
        // of ours, has behind it; the copy is fresh and has room for both.
        unsafe { core::ptr::copy_nonoverlapping(from, bytes.as_ptr().wrapping_add(below - used), used + TCB_COPIED) };
        let dtv = core::ptr::with_exposed_provenance::<*const DtvEntry>(here);
        // SAFETY: tcbhead_t: the thread pointer itself, then the DTV.
        let dtv = unsafe { dtv.wrapping_add(1).read() };
        // SAFETY: a DTV has at least its generation.
        let generation = if dtv.is_null() { [0; 2] } else { unsafe { dtv.read() } };
        Ok(Template { below, used, bytes, modules, generation })
    }
}

/// The storage of each module of the thread whose pointer is `thread`, by the modules' numbers (from 1).
fn dtv_of(thread: usize) -> impl Iterator<Item = usize> {
    let head = core::ptr::with_exposed_provenance::<*const DtvEntry>(thread);
    // SAFETY: tcbhead_t: the thread pointer itself, then the DTV.
    let dtv = unsafe { head.wrapping_add(1).read() };
    let modules = if dtv.is_null() {
        0
    } else {
        // SAFETY: the entry before the first has the number of entries that there is room for.
        unsafe { dtv.wrapping_sub(1).read()[0] }.min(MODULES_MAX)
    };
    // SAFETY: entries from 1 to that number.
    (1..=modules).map(move |module| unsafe { dtv.wrapping_add(module).read()[0] })
}

impl Home {
    /// Memory for a thread with a stack of `stack` bytes (rounded up to pages).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(stack: usize) -> Result<Home, Errno> {
        let stack = stack.next_multiple_of(PAGE) + PAGE;
        let template = Template::get()?;
        let below = template.below;
        let dtv = (MODULES_MAX + 2) * size_of::<DtvEntry>();
        let base = map_own(stack + below + TCB + dtv)?;
        // SAFETY: the lowest page of memory that nobody uses yet.
        unsafe { vm::mprotect(base.as_ptr() as u64, PAGE as u64, vm::prot::NONE) }?;
        Ok(Home { base, stack, template })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(offset)
    }

    /// The thread pointer of the thread that lives here.
    fn thread_pointer(&self) -> *mut u8 {
        self.at(self.stack + self.template.below)
    }

    /// Fills the thread-local storage.
    ///
    /// # Safety
    /// Nobody lives here.
    unsafe fn furnish(&self) {
        let Template { below, used, bytes, modules, generation } = *self.template;
        let ours = self.thread_pointer();
        // SAFETY: the template's storage and TCB; ours is as long, and nobody's.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr().wrapping_add(below - used), ours.wrapping_sub(used), used + TCB) };
        let dtv = self.at(self.stack + below + TCB).cast::<DtvEntry>();
        // SAFETY: the first two entries of the room for the DTV: how many there are, and their generation.
        unsafe { dtv.cast::<[DtvEntry; 2]>().write([[MODULES_MAX, 0], generation]) };
        for (module, distance) in (1..).zip(modules) {
            let storage = if distance > 0 { ours as usize - distance } else { UNALLOCATED };
            // SAFETY: there is room for `MODULES_MAX` entries behind the first two.
            unsafe { dtv.wrapping_add(1 + module).write([storage, 0]) };
        }
        // SAFETY: tcbhead_t: self at 0 and 16, the DTV at 8.
        unsafe { ours.cast::<[usize; 3]>().write([ours as usize, dtv.wrapping_add(1) as usize, ours as usize]) };
        // What our own library keeps for a thread begins with null.
        // SAFETY: the same place in the new storage as in the caller's.
        unsafe { tls::clear_in(ours) };
    }

    /// Gives the calling thread, which was made by `clone` and has its parent's thread pointer, storage of its own: a copy of it, with
    /// `behind` bytes behind the thread pointer (4 KiB at most). What our own library keeps for a thread begins with null.
    ///
    /// # Errors
    /// What arch_prctl(2) answers.
    ///
    /// # Safety
    /// Nobody lives here, and the memory stays as long as the thread. There are `behind` bytes behind the thread pointer.
    pub unsafe fn move_in(&self, behind: usize) -> Result<(), Errno> {
        const SYS_ARCH_PRCTL: u64 = 158;
        const ARCH_SET_FS: u64 = 0x1002;
        // SAFETY: this function's own condition.
        unsafe { self.furnish() };
        let (ours, theirs) = (self.thread_pointer(), core::ptr::with_exposed_provenance::<u8>(tls::thread_pointer() as usize));
        let Template { used, .. } = *self.template;
        // SAFETY: the caller's static storage now, which was as large at the start; and ours has as much.
        unsafe { core::ptr::copy_nonoverlapping(theirs.wrapping_sub(used), ours.wrapping_sub(used), used) };
        // SAFETY: the caller says that there is so much; ours has room for `TCB` bytes.
        unsafe {
            core::ptr::copy_nonoverlapping(
                theirs.wrapping_add(TCB_COPIED),
                ours.wrapping_add(TCB_COPIED),
                behind.clamp(TCB_COPIED, TCB) - TCB_COPIED,
            )
        };
        // SAFETY: the same place in the new storage as in the caller's.
        unsafe { tls::clear_in(ours) };
        // SAFETY: the storage is complete.
        unsafe { crate::raw::syscall_result(SYS_ARCH_PRCTL, [ARCH_SET_FS, ours as u64, 0, 0, 0, 0]) }.map(drop)
    }

    /// The same for a thread of a hosted program ([`hosted`]), whose thread pointer stays the program's: the storage is as new.
    ///
    /// # Errors
    /// What arch_prctl(2) answers.
    ///
    /// # Safety
    /// Nobody lives here, and the memory stays as long as the thread.
    pub unsafe fn move_in_hosted(&self) -> Result<(), Errno> {
        // SAFETY: this function's own condition.
        unsafe { self.furnish() };
        // SAFETY: the storage is complete.
        unsafe { hosted::set_pointer(self.thread_pointer() as u64) }
    }

    /// First address and bytes of its memory.
    pub fn memory(&self) -> (u64, u64) {
        let dtv = (MODULES_MAX + 2) * size_of::<DtvEntry>();
        (self.base.as_ptr() as u64, (self.stack + self.template.below + TCB + dtv) as u64)
    }

    /// Starts a thread here that runs `body`, which never returns. It begins with the caller's signal mask. Its number.
    ///
    /// # Safety
    /// Nobody lives here (any more), and the memory stays as long as the thread.
    ///
    /// # Errors
    /// What clone(2) answers.
    pub unsafe fn start(&self, name: &'static CStr, body: extern "C" fn(u64) -> !, argument: u64) -> Result<u32, Errno> {
        // SAFETY: this function's own condition.
        unsafe { self.furnish() };
        let words = [begin as *const () as u64, name.as_ptr() as u64, body as usize as u64, argument];
        let stack = self.at(self.stack - size_of_val(&words));
        // SAFETY: the stack's highest words.
        unsafe { stack.cast::<[u64; 4]>().write(words) };
        // SAFETY: flags of a thread; the stack has the four words that the routine takes off; storage was made above.
        let answer = unsafe { farshore_start_thread(CLONE_FLAGS, stack, self.thread_pointer()) };
        if answer < 0 { Err(Errno(-answer as i32)) } else { Ok(answer as u32) }
    }
}

/// Makes a process or thread by `clone` with these flags, which runs `body` on the stack that ends at `stack` and has no thread-local
/// storage of its own. It begins with the caller's signal mask. Its number.
///
/// # Safety
/// With `CLONE_VM`: the stack is nobody else's, and stays as long as the new thread; `body` uses no thread-locals.
///
/// # Errors
/// What clone(2) answers.
pub unsafe fn start_on(flags: u64, stack: *mut u8, body: extern "C" fn(u64) -> !, argument: u64) -> Result<u32, Errno> {
    let words = [body as usize as u64, argument, 0, 0];
    let stack = stack.wrapping_sub(size_of_val(&words));
    // SAFETY: the highest words of a stack that nobody uses.
    unsafe { stack.cast::<[u64; 4]>().write(words) };
    // SAFETY: this function's own condition; the stack has the four words that the routine takes off.
    crate::raw::sort(unsafe { farshore_start_thread(flags & !CLONE_SETTLS, stack, core::ptr::null_mut()) })
        .map(|number| number as u32)
}

/// The first Rust function of a thread.
extern "C" fn begin(name: *const u8, body: extern "C" fn(u64) -> !, argument: u64) -> ! {
    // A thread without a name is no harm.
    // SAFETY: a C string that lives for ever.
    let _ = unsafe { crate::raw::syscall(SYS_PRCTL, [PR_SET_NAME, name as u64, 0, 0, 0, 0]) };
    body(argument)
}

unsafe extern "C" {
    fn farshore_start_thread(flags: u64, stack: *mut u8, thread_pointer: *mut u8) -> i64;
}

global_asm!(
    ".pushsection .text.farshore_start_thread,\"ax\",@progbits",
    ".globl farshore_start_thread",
    ".hidden farshore_start_thread",
    ".type farshore_start_thread,@function",
    "farshore_start_thread:",
    // clone(flags, stack, parent_tid, child_tid, tls)
    "mov r8, rdx",
    "xor edx, edx",
    "xor r10d, r10d",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    // The thread. An unwinder ends here. Where the program is hosted our code goes by another register.
    "2:",
    "xor ebp, ebp",
    "cmp byte ptr [rip + {hosted}], 0",
    "je 3f",
    "bt edi, {settls}",
    "jnc 3f",
    "mov edi, {set_gs}",
    "mov rsi, r8",
    "mov eax, {arch_prctl}",
    "syscall",
    "3:",
    "pop rax",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    // The stack pointer is a multiple of 16 now, as before a call.
    "call rax",
    "ud2",
    ".size farshore_start_thread, . - farshore_start_thread",
    ".popsection",
    hosted = sym hosted::HOSTED,
    settls = const CLONE_SETTLS.trailing_zeros(),
    set_gs = const hosted::ARCH_SET_GS,
    arch_prctl = const hosted::SYS_ARCH_PRCTL,
);

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::sync::atomic::{AtomicU64, Ordering};

    thread_local! {
        static LOCAL: Cell<u64> = const { Cell::new(7) };
    }
    static SEEN: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

    fn end() -> ! {
        loop {
            // SAFETY: ends this thread only.
            unsafe { crate::raw::syscall(crate::raw::nr::EXIT, [0; 6]) };
        }
    }

    extern "C" fn body(n: u64) -> ! {
        assert!(tls::get().is_null(), "a new thread's pointer is null");
        let mut here = 1u8;
        // SAFETY: never dereferenced by others.
        unsafe { tls::set(&raw mut here) };
        LOCAL.with(|l| l.set(l.get() + n));
        let mut sum = 0;
        for _ in 0..1000 {
            sum += LOCAL.with(Cell::get);
            std::hint::spin_loop();
        }
        assert_eq!(tls::get(), &raw mut here);
        SEEN[n as usize].store(sum, Ordering::Release);
        end()
    }

    #[test]
    fn threads_have_storage_of_their_own() {
        LOCAL.with(|l| l.set(100));
        // SAFETY: never dereferenced.
        unsafe { tls::set(core::ptr::without_provenance_mut(8)) };
        for round in 0..20 {
            SEEN.iter().for_each(|s| s.store(0, Ordering::Release));
            let homes: Vec<Home> = (0..4).map(|_| Home::new(64 << 10).unwrap()).collect();
            for (n, home) in homes.iter().enumerate() {
                // SAFETY: a new home, which is leaked below.
                unsafe { home.start(c"test", body, n as u64) }.unwrap();
            }
            for (n, seen) in SEEN.iter().enumerate() {
                while seen.load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                assert_eq!(seen.load(Ordering::Acquire), (100 + n as u64) * 1000, "round {round}");
            }
        }
        assert_eq!(LOCAL.with(Cell::get), 100);
        // SAFETY: null is always allowed.
        unsafe { tls::set(core::ptr::null_mut()) };
    }
}
