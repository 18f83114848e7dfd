//! AES-256 in the XTS mode of IEEE 1619 (NIST SP 800-38E), for data units of one page.
//!
//! With `K1` and `K2` the halves of the key and `n` the slot's number, 16 bytes little endian, block `j` of a page is
//!
//! ```text
//! T(0) = AES(K2, n)      T(j+1) = T(j) · x  in GF(2^128)      C(j) = AES(K1, P(j) xor T(j)) xor T(j)
//! ```
//!
//! A page is a whole number of blocks, so no ciphertext is stolen from a last one. The cipher is the `aes` crate's, which
//! works on up to 64 blocks at once. That is why the mode is implemented here: `xts-mode` goes block by block and takes
//! 2.5 times as long (2.2 and 0.9 µs a page, both with VAES). `xts-mode` is the oracle of the tests, beside the
//! standard's vectors.
//!
//! # Traces
//!
//! Round keys are loaded into vector registers, and compilers spill them to the stack. Stacks are dumped and swapped, and the
//! registers of a thread that sleeps are part of a core dump. So each operation is a function that is not inlined, and its
//! caller clears the registers and as much of the stack as the function may have used. Only a dump of a thread that is at
//! work on a page at that very moment can still show round keys.

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Aes256Enc};
use farshore_core::seams::PageBuf;

/// Bytes of both keys.
pub(super) const KEY_BYTES: usize = 64;
const BLOCK: usize = 16;
/// Blocks that go through the cipher together.
const TOGETHER: usize = 64;
/// Stack that is cleared after a page. The operations take 7 KiB of it, and 9 without optimisation; a test looks for what is
/// left.
const STACK_PAGE: usize = 12 << 10;
/// Stack that is cleared after the schedules were made.
const STACK_NEW: usize = 16 << 10;

type Block = [u8; BLOCK];

/// The expanded keys. They lie where their owner puts this value; when it is dropped, they are overwritten with zeros.
#[derive(Debug)]
pub(super) struct Schedules {
    data: Aes256,
    tweak: Aes256Enc,
}

impl Schedules {
    /// Expands `key` into `place`, leaving no copy elsewhere.
    ///
    /// # Safety
    /// `place` is memory for one value that no other code uses, as aligned as the type; its old contents are not dropped.
    pub(super) unsafe fn expand(key: &[u8; KEY_BYTES], place: *mut Schedules) {
        #[inline(never)]
        unsafe fn expand(key: &[u8; KEY_BYTES], place: *mut Schedules) {
            let (data, tweak) = key.split_at(KEY_BYTES / 2);
            // Both halves are 32 bytes, which is what the types ask for.
            let (Ok(data), Ok(tweak)) = (Aes256::new_from_slice(data), Aes256Enc::new_from_slice(tweak)) else { unreachable!() };
            // SAFETY: this function's own condition.
            unsafe { place.write(Schedules { data, tweak }) };
        }
        // SAFETY: the caller's contract is the same.
        unsafe { expand(key, place) };
        clear_registers();
        clear_stack::<STACK_NEW>();
    }

    /// Encrypts the page `from` as data unit `number` into `to`.
    pub(super) fn encrypt(&self, number: u64, from: &PageBuf, to: &mut PageBuf) {
        self.encrypt_leaving_traces(number, from, to);
        clear_registers();
        clear_stack::<STACK_PAGE>();
    }

    /// Decrypts data unit `number` in place.
    pub(super) fn decrypt(&self, number: u64, page: &mut PageBuf) {
        self.decrypt_leaving_traces(number, page);
        clear_registers();
        clear_stack::<STACK_PAGE>();
    }

    #[inline(never)]
    pub(super) fn encrypt_leaving_traces(&self, number: u64, from: &PageBuf, to: &mut PageBuf) {
        let (mut tweak, mut tweaks) = (self.first_tweak(number), [0; TOGETHER]);
        let from = blocks(&from.0).chunks(TOGETHER);
        for (from, to) in from.zip(blocks_mut(&mut to.0).chunks_mut(TOGETHER)) {
            next_tweaks(&mut tweak, &mut tweaks);
            for ((to, from), tweak) in to.iter_mut().zip(from).zip(&tweaks) {
                *to = xor(from, *tweak);
            }
            self.data.encrypt_blocks(Array::cast_slice_from_core_mut(to));
            add(to, &tweaks);
        }
    }

    #[inline(never)]
    fn decrypt_leaving_traces(&self, number: u64, page: &mut PageBuf) {
        let (mut tweak, mut tweaks) = (self.first_tweak(number), [0; TOGETHER]);
        for blocks in blocks_mut(&mut page.0).chunks_mut(TOGETHER) {
            next_tweaks(&mut tweak, &mut tweaks);
            add(blocks, &tweaks);
            self.data.decrypt_blocks(Array::cast_slice_from_core_mut(blocks));
            add(blocks, &tweaks);
        }
    }

    #[inline(never)]
    fn first_tweak(&self, number: u64) -> u128 {
        let mut block = Array(u128::from(number).to_le_bytes());
        self.tweak.encrypt_block(&mut block);
        u128::from_le_bytes(block.0)
    }
}

fn blocks(page: &[u8; 4096]) -> &[Block] {
    page.as_chunks().0
}

fn blocks_mut(page: &mut [u8; 4096]) -> &mut [Block] {
    page.as_chunks_mut().0
}

/// The tweaks of the next blocks. `tweak` is the first of them, and afterwards the tweak of the block behind them.
#[inline(always)]
fn next_tweaks(tweak: &mut u128, tweaks: &mut [u128; TOGETHER]) {
    for next in tweaks {
        *next = *tweak;
        // Times x, modulo x^128 + x^7 + x^2 + x + 1; without a branch, which would tell the tweak by its time.
        *tweak = (*tweak << 1) ^ (0x87 & 0u128.wrapping_sub(*tweak >> 127));
    }
}

#[inline(always)]
fn xor(block: &Block, tweak: u128) -> Block {
    (u128::from_le_bytes(*block) ^ tweak).to_le_bytes()
}

#[inline(always)]
fn add(blocks: &mut [Block], tweaks: &[u128; TOGETHER]) {
    for (block, tweak) in blocks.iter_mut().zip(tweaks) {
        *block = xor(block, *tweak);
    }
}

/// Fills the `N` bytes of stack below the caller's frame with zeros.
#[inline(never)]
fn clear_stack<const N: usize>() {
    let mut area = core::mem::MaybeUninit::<[u8; N]>::zeroed();
    // SAFETY: no instructions. It says that the memory may be read here, so that the zeros are really written.
    unsafe { core::arch::asm!("/* {0} */", in(reg) area.as_mut_ptr(), options(nostack, preserves_flags)) };
}

/// Clears the vector registers, in which round keys were.
#[inline(never)]
fn clear_registers() {
    // SAFETY: they are all scratch registers of the calling convention, of which the first sixteen are named here; the
    // others are unknown to this function, as it is compiled for any x86-64, and given up by its callers. The wide forms
    // are reached only where the processor and the system have them.
    unsafe {
        core::arch::asm!(
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "pxor xmm\\n, xmm\\n",
            ".endr",
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nomem, nostack, preserves_flags),
        );
    }
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: as above; clears all of the first sixteen registers, whose low parts are zeros already.
        unsafe { core::arch::asm!("vzeroall", options(nomem, nostack, preserves_flags)) };
    }
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: as above.
        unsafe {
            core::arch::asm!(
                ".irp n, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vpxorq zmm\\n, zmm\\n, zmm\\n",
                ".endr",
                options(nomem, nostack, preserves_flags),
            );
        }
    }
}
