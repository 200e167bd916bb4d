//! The tier `avx512f` runs on Knights Landing, which has AVX-512 F and CD and no other part of AVX-512. The compiler may
//! not be trusted with that, nor may the author of a kernel: every function of the tier in this program is taken apart.
//! So are those of the tiers of bf16, which must hold the instructions that they are named after, and with AMX the
//! registers that its algorithm names: few machines have it to run them.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Formatter, NasmFormatter};
use object::{Object, ObjectSection, ObjectSymbol};

/// What was found in the functions whose names hold `part`.
#[derive(Default)]
struct Findings {
    functions: usize,
    /// Parts of AVX-512 in use.
    parts: BTreeSet<String>,
    /// Instructions of AMX.
    amx: BTreeSet<String>,
    /// Instructions of parts that Knights Landing has not, with their functions.
    foreign: Vec<String>,
}

fn take_apart(part: &str) -> Findings {
    let program = std::fs::read(std::env::current_exe().expect("this program")).expect("a readable program");
    let file = object::File::parse(&*program).expect("an object file");
    let mut findings = Findings::default();
    for symbol in file.symbols().filter(|s| s.is_definition() && s.size() > 0) {
        let Some(name) = symbol.name().ok().filter(|name| name.contains(part)) else { continue };
        let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
        let code = section.and_then(|s| s.data_range(symbol.address(), symbol.size()).ok().flatten());
        let Some(code) = code.filter(|_| symbol.kind() == object::SymbolKind::Text) else { continue };
        findings.functions += 1;
        for instruction in Decoder::with_ip(64, code, symbol.address(), DecoderOptions::NONE) {
            for feature in instruction.cpuid_features() {
                let feature = format!("{feature:?}");
                if feature.starts_with("AMX") {
                    let mut text = String::new();
                    NasmFormatter::new().format(&instruction, &mut text);
                    findings.amx.insert(text);
                }
                if !feature.starts_with("AVX512") {
                    continue;
                }
                if !["AVX512F", "AVX512CD"].contains(&feature.as_str()) {
                    let mut text = String::new();
                    NasmFormatter::new().format(&instruction, &mut text);
                    findings.foreign.push(format!("{feature}: {text} in {name}"));
                }
                findings.parts.insert(feature);
            }
        }
    }
    findings
}

/// Needs AVX-512 BW: shows that the search finds what it looks for.
#[target_feature(enable = "avx512bw")]
#[inline(never)]
fn quadrille_control_of_words(words: std::arch::x86_64::__m512i) -> std::arch::x86_64::__m512i {
    std::arch::x86_64::_mm512_add_epi16(words, words)
}

#[test]
fn the_tier_of_knights_landing_has_its_instructions_only() {
    // Named here, so that it is in the program; the pointer is all that is made.
    let control: unsafe fn(_) -> _ = quadrille_control_of_words;
    std::hint::black_box(control);
    let control = take_apart("quadrille_control_of_words");
    assert!(control.parts.contains("AVX512BW"), "mistrusted: {:?}", control.parts);

    let tier = take_apart("avx512f");
    assert!(
        tier.functions > 50 && tier.parts.contains("AVX512F"),
        "mistrusted: {} functions",
        tier.functions
    );
    assert!(
        tier.foreign.is_empty(),
        "{} of {} functions:\n{}",
        tier.foreign.len(),
        tier.functions,
        tier.foreign[..tier.foreign.len().min(20)].join("\n")
    );
}

#[test]
fn the_tiers_of_bf16_have_their_instructions() {
    let tier = take_apart("avx512bf16");
    assert!(
        tier.functions > 30 && tier.parts.contains("AVX512_BF16"),
        "{} functions: {:?}",
        tier.functions,
        tier.parts
    );

    let tier = take_apart("amxbf16");
    // Tiles of 1 to 32 pixels and of 1 to 16 sources, of one vector and of two, some of them for two formats.
    assert!(tier.functions >= 2 * (32 + 16), "mistrusted: {} functions", tier.functions);
    let outputs = ["tmm0,tmm4,tmm6", "tmm1,tmm4,tmm7", "tmm2,tmm5,tmm6", "tmm3,tmm5,tmm7"];
    for products in outputs.into_iter().chain(["tmm0,tmm2,tmm3", "tmm1,tmm2,tmm5"]) {
        assert!(tier.amx.contains(&format!("tdpbf16ps {products}")), "{products}: {:?}", tier.amx);
    }
    let has = |parts: &[&str]| tier.amx.iter().any(|text| parts.iter().all(|part| text.contains(part)));
    for register in 0..8 {
        let loaded = format!("tileloadd tmm{register},[");
        assert!(has(&[&loaded]), "{loaded}: {:?}", tier.amx);
    }
    assert!(has(&["ldtilecfg ["]), "{:?}", tier.amx);
    for sums in 0..4 {
        assert!(has(&[&format!("tilezero tmm{sums}")]), "{sums}: {:?}", tier.amx);
        assert!(has(&["tilestored [", "]", &format!(",tmm{sums}")]), "{sums}: {:?}", tier.amx);
    }
}

/// The functions of this program by address, each with its name and the addresses that it calls.
fn calls() -> BTreeMap<u64, (String, BTreeSet<u64>)> {
    let program = std::fs::read(std::env::current_exe().expect("this program")).expect("a readable program");
    let file = object::File::parse(&*program).expect("an object file");
    let functions = file.symbols().filter(|s| s.is_definition() && s.size() > 0);
    let functions = functions.filter(|s| s.kind() == object::SymbolKind::Text);
    let with_calls = functions.filter_map(|symbol| {
        let section = file.section_by_index(symbol.section_index()?).ok()?;
        let code = section.data_range(symbol.address(), symbol.size()).ok()??;
        let instructions = Decoder::with_ip(64, code, symbol.address(), DecoderOptions::NONE).into_iter();
        let calls = instructions.filter(|i| i.flow_control() == FlowControl::Call);
        let name = symbol.name().ok()?.to_owned();
        Some((symbol.address(), (name, calls.map(|i| i.near_branch_target()).collect())))
    });
    with_calls.collect()
}

/// An intrinsic is an instruction only where the compiler inlines it, which it does not in a function, such as a closure,
/// that is not compiled for the tier: there it is a call, with registers passed through memory. Looked for two calls deep.
#[test]
fn no_instruction_of_a_tier_is_a_call() {
    let functions = calls();
    let name = |address: &u64| functions.get(address).map_or("", |(name, _)| name.as_str());
    let is_intrinsic = |address: &u64| name(address).contains("core_arch") && name(address).contains("_mm");
    let tiers = ["avx2", "avx512f", "avx512bf16", "amxbf16"];
    let (mut looked, mut found) = (0, Vec::new());
    for (caller, direct) in functions.values().filter(|(name, _)| tiers.iter().any(|t| name.contains(t))) {
        if caller.contains("core_arch") {
            continue;
        }
        looked += 1;
        for called in direct {
            let behind = functions.get(called).into_iter().flat_map(|(_, calls)| calls);
            let slow = [called].into_iter().chain(behind).find(|address| is_intrinsic(address));
            found.extend(slow.map(|slow| format!("{caller} by {}: {}", name(called), name(slow))));
        }
    }
    assert!(looked > 100, "mistrusted: {looked} functions");
    assert!(found.is_empty(), "{}", found.join("\n"));
}
