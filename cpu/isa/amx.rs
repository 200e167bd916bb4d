//! Whether AMX can be used: the CPU must have it, the system must save its registers, and must have been asked to let
//! this process use them.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// CPUID leaf 7, EDX: tiles, and products of bf16 on them.
const TILES: u32 = 1 << 24;
const BF16: u32 = 1 << 22;
/// CPUID leaf 1, ECX: the system uses XSAVE, so that XCR0 can be read.
const OSXSAVE: u32 = 1 << 27;
/// XCR0: configuration and contents of tiles are saved.
const SAVED: u64 = 0b11 << 17;
/// Linux: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
const ARCH_PRCTL: u64 = 158;
const REQUEST_PERMISSION: u64 = 0x1023;
const TILE_DATA: u64 = 18;

/// Whether this process may use tiles of bf16. The first call asks the system, for all threads of the process.
pub(super) fn is_available() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| cpu_has_tiles() && system_saves_tiles() && permission_is_given() || are_emulated())
}

/// Whether tiles are emulated: only in programs that are built for that, if the CPU has none and they are asked to.
pub(super) fn are_emulated() -> bool {
    #[cfg(feature = "emulated-amx")]
    {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        *ANSWER.get_or_init(|| !cpu_has_tiles() && std::env::var_os("QUADRILLE_EMULATED_AMX").is_some())
    }
    #[cfg(not(feature = "emulated-amx"))]
    false
}

// Reading CPUID became safe after the oldest Rust that is supported.
#[allow(unused_unsafe)]
fn cpu_has_tiles() -> bool {
    // SAFETY: every x86-64 has CPUID; leaf 7 is read where there is one.
    unsafe { __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & (TILES | BF16) == TILES | BF16 }
}

#[allow(unused_unsafe)]
fn system_saves_tiles() -> bool {
    // SAFETY: every x86-64 has CPUID with leaf 1.
    if unsafe { __cpuid(1) }.ecx & OSXSAVE == 0 {
        return false;
    }
    #[target_feature(enable = "xsave")]
    fn saved() -> u64 {
        // SAFETY: register 0 exists where the system uses XSAVE.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: the system uses XSAVE, so the CPU has it.
    unsafe { saved() & SAVED == SAVED }
}

fn permission_is_given() -> bool {
    let result: i64;
    // SAFETY: the system call takes two numbers and touches no memory of the process.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result == 0
}
