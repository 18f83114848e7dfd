//! The linear prefetcher: behind each fault it asks for the pages that come next. `linear PID`; `farshore set PID ahead=32` changes how many.

use farshore_beside::{Kind, PAGE, Wanted};

fn main() -> Result<(), String> {
    let pid = std::env::args().nth(1).and_then(|word| word.parse().ok()).ok_or("usage: linear PID")?;
    let mut program = farshore_beside::attach(pid).map_err(|refusal| refusal.text)?;
    let ahead = program.register("ahead", 8).ok_or("the name is none")?;
    program.want(&[Kind::Fault]);
    while let Some(event) = program.next() {
        let pages = program.parameter(ahead).max(1) as u64;
        program.ask(Wanted::Prefetch, event.address + PAGE, pages);
    }
    Ok(())
}
