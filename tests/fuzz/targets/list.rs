#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quadrille_fuzz::bodies::list(bytes));
