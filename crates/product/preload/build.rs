//! What the library's linker is told beside what cargo tells it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The library's entry as a program (`src/dispatch/hosted.rs`).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-e,farshore_hosted_entry");
    // What the library's dependencies map lies apart from the program's memory (`src/ground/apart.rs`). The names stay the library's own:
    // the program's `mmap` is libc's.
    for (name, ours) in [("mmap", "mmap"), ("mmap64", "mmap"), ("munmap", "munmap")] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym={name}=farshore_{ours}_apart");
    }
}
