//! The library's entry as a program (`src/dispatch/hosted.rs`).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-e,farshore_hosted_entry");
}
