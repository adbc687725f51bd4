//! Linker flags for a library that lives inside the BEAM.

fn main() {
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        // The BEAM provides the enif_* symbols when it loads the library.
        Ok("macos") => {
            println!("cargo::rustc-link-arg-cdylib=-undefined");
            println!("cargo::rustc-link-arg-cdylib=dynamic_lookup");
        }
        // Once loaded it stays: the module may be purged while a dirty call still runs in here.
        _ => println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete"),
    }
}
