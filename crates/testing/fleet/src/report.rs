//! Tables of what came of it, in Markdown.

use crate::balls::Thrown;
use crate::scenario::{Outcome, SCENARIOS, Scenario};
use crate::setup::{GIB, SECOND, Setup};
use serde::Serialize;
use std::fmt::Write as _;

/// All that was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The fleet.
    pub setup: Setup,
    /// Balls and bins.
    pub thrown: Vec<Thrown>,
    /// What came of each case.
    pub outcomes: Vec<Outcome>,
}

/// A number with commas.
fn whole(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|part| std::str::from_utf8(part).unwrap_or("")).collect();
    parts.join(",")
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 99.5 => format!("{s:.0} s"),
        s if s < 6000.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".into(), |ratio| format!("{ratio:.2}"))
}

fn part(outcome: &Outcome) -> String {
    outcome.part_gib.map_or_else(|| "whole".into(), |gib| format!("{gib:.0} GiB"))
}

impl Report {
    /// The tables.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        // To a String this cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let setup = &self.setup;
        writeln!(
            text,
            "{} clients with {} GiB in the mean, {} nodes of {} GiB in {} racks, repair at {} MiB/s, a lost node replaced after {}, seed {}.\n",
            setup.clients,
            setup.need / GIB,
            setup.nodes,
            setup.memory / GIB,
            setup.racks,
            setup.repair >> 20,
            time(setup.exchange as f64 / SECOND as f64),
            setup.seed
        )?;
        self.write_fullness(text)?;
        for scenario in SCENARIOS {
            self.write_scenario(text, scenario)?;
        }
        if !self.thrown.is_empty() {
            writeln!(text, "## Balls into bins: the fullest above the mean\n")?;
            writeln!(
                text,
                "| bins | balls a bin | at random | in theory | two choices | ln ln n / ln 2 |\n|---:|---:|---:|---:|---:|---:|"
            )?;
            for it in &self.thrown {
                let Thrown { bins, each, random, two, random_in_theory, two_in_theory } = it;
                writeln!(
                    text,
                    "| {} | {each} | {random:.1} | {random_in_theory:.1} | {two:.1} | {two_in_theory:.1} |",
                    whole(*bins as u64)
                )?;
            }
            writeln!(text)?;
        }
        Ok(())
    }

    /// How full nodes are before anything happens: it is the same for each scenario.
    fn write_fullness(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "## The fullest node\n")?;
        writeln!(
            text,
            "| copies | placed | by | racks | of its memory | of the mean | GiB without room |\n|---:|---|---|---|---:|---:|---:|"
        )?;
        let mut known = std::collections::BTreeSet::new();
        for it in &self.outcomes {
            let row = format!(
                "| {} | {} | {} | {} | {:.2} | {:.2} | {:.0} |",
                it.copies,
                part(it),
                it.choice.name(),
                if it.apart { "different" } else { "any" },
                it.fullest,
                it.fullest_of_mean,
                it.homeless_gib
            );
            if known.insert(row.clone()) {
                writeln!(text, "{row}")?;
            }
        }
        writeln!(text)
    }

    /// What a node that has joined has.
    fn write_joined(text: &mut String, scenario: Scenario, of_it: &[&Outcome]) -> std::fmt::Result {
        let name = scenario.name();
        writeln!(text, "## {}{}\n", name[..1].to_uppercase(), &name[1..])?;
        writeln!(
            text,
            "| copies | placed | by | racks | watched | the new node, of the mean | the fullest, of the mean | copied, GiB | whole after | pages lost |"
        )?;
        writeln!(text, "|---:|---|---|---|---:|---:|---:|---:|---:|---:|")?;
        for it in of_it {
            writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {:.2} | {:.0} | {} | {} |",
                it.copies,
                part(it),
                it.choice.name(),
                if it.apart { "different" } else { "any" },
                time(it.simulated_s),
                ratio(it.joined_of_mean),
                it.fullest_of_mean_after,
                it.copied_gib,
                it.whole_s.map_or_else(|| "never".into(), time),
                whole(it.lost_pages)
            )?;
        }
        writeln!(text)
    }

    fn write_scenario(&self, text: &mut String, scenario: Scenario) -> std::fmt::Result {
        let of_it: Vec<&Outcome> = self.outcomes.iter().filter(|outcome| outcome.scenario == scenario).collect();
        if of_it.is_empty() {
            return Ok(());
        }
        if matches!(scenario, Scenario::Joins | Scenario::Filled) {
            return Self::write_joined(text, scenario, &of_it);
        }
        let name = scenario.name();
        writeln!(text, "## {}{}\n", name[..1].to_uppercase(), &name[1..])?;
        writeln!(
            text,
            "| copies | placed | by | racks | pages lost | GiB | of clients | nodes had, GiB | copied, GiB | extra | whole after | half of them | on one copy, mean | longest | \
             held back |"
        )?;
        writeln!(text, "|---:|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")?;
        for it in of_it {
            writeln!(
                text,
                "| {} | {} | {} | {} | {} | {:.1} | {} of {} | {:.0} | {:.0} | {} | {} | {} | {} | {} | {:.2} % |",
                it.copies,
                part(it),
                it.choice.name(),
                if it.apart { "different" } else { "any" },
                whole(it.lost_pages),
                it.lost_gib,
                it.lost_clients,
                it.hit_clients,
                it.taken_gib,
                it.copied_gib,
                ratio(it.extra),
                it.whole_s.map_or_else(|| "never".into(), time),
                time(it.whole_median_s),
                if it.copies == 1 { "always".into() } else { time(it.single_mean_s) },
                if it.copies == 1 { "always".into() } else { time(it.single_most_s) },
                it.held_back * 100.0
            )?;
        }
        writeln!(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1000, 1_234_567].map(whole), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([3.4, 99.6, 600.0, 7200.0].map(time), ["3 s", "1.7 min", "10.0 min", "2.0 h"]);
        assert_eq!([None, Some(0.777)].map(ratio), ["–", "0.78"]);
    }

    #[test]
    fn each_scenario_has_its_table() {
        let setup = Setup { clients: 20, nodes: 10, racks: 5, need: GIB / 64, ..Setup::default() };
        let warm = crate::scenario::warm(&setup);
        let outcomes = [Scenario::Lost, Scenario::Away].map(|scenario| crate::scenario::run(&warm, scenario)).to_vec();
        let text = Report { setup, thrown: vec![crate::balls::throw(10, 1, 1, 1)], outcomes }.markdown();
        for part in ["## The fullest node", "## A node is lost", "## A node is away for a minute", "## Balls into bins"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("rack is lost"), "{text}");
        // The fullest node is told once, and each table has one row.
        assert_eq!(text.matches("| 2 | whole | two choices | different |").count(), 3, "{text}");
    }
}
