//! Inputs that a fuzzer found worth keeping, and those that once crashed a check.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::path::Path;

mod checks;

#[test]
fn what_a_fuzzer_found_holds_still() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, check) in checks::ALL {
        let mut count = 0;
        for file in fs::read_dir(corpus.join(name)).unwrap() {
            let path = file.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let outcome = std::panic::catch_unwind(|| check(&bytes));
            assert!(outcome.is_ok(), "{}", path.display());
            count += 1;
        }
        assert!(count > 0, "nothing to try for {name}");
    }
}
