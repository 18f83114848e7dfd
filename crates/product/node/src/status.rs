//! What is told of a node: a line for people, and metrics for Prometheus.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::amount;
use crate::exports::Exports;
use crate::session::Counts;
use crate::space::PAGE;
use crate::worker::{Connections, Worker};

/// What a node is made of, for those who look.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The exports.
    pub exports: Arc<Exports>,
    /// The connections.
    pub connections: Arc<Connections>,
    /// The workers.
    pub workers: Vec<Arc<Worker>>,
}

impl Parts {
    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.workers.iter().for_each(|worker| sum += worker.counts());
        sum
    }

    /// The state in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let (budget, counts) = (self.exports.budget(), self.counts());
        let (exports, used) = self.exports.count();
        format!(
            "{} of {} taken; {exports} exports, {used} of them with a client; {} connections; {} reads ({}), {} writes ({}), {} trims, \
             {} errors",
            amount(budget.taken() * PAGE),
            amount(budget.most() * PAGE),
            self.connections.now(),
            counts.reads,
            amount(counts.read_bytes),
            counts.writes,
            amount(counts.written_bytes),
            counts.trims,
            counts.errors,
        )
    }

    /// The metrics, in the form of OpenMetrics.
    ///
    /// # Panics
    /// Never: a string takes all that is written to it.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string takes all that is written to it");
        text
    }
}

impl Collector for Parts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (budget, counts) = (self.exports.budget(), self.counts());
        let (exports, used) = self.exports.count();
        let (accepted, closed) = self.connections.so_far();
        let mut put = |name: &str, help: &str, unit: Option<&Unit>, metric: &dyn Put| {
            metric.put(&mut encoder, &format!("farshore_node_{name}"), help, unit)
        };
        let bytes = Some(&Unit::Bytes);
        let gauge = |value: u64| ConstGauge::new(value);
        let counter = |value: u64| ConstCounter::new(value);
        put("memory", "What exports may take together.", bytes, &gauge(budget.most() * PAGE))?;
        put("taken", "What exports have taken.", bytes, &gauge(budget.taken() * PAGE))?;
        put("exports", "Exports that there are.", None, &gauge(exports as u64))?;
        put("exports_used", "Exports that have a connection.", None, &gauge(used as u64))?;
        put("connections", "Connections that there are.", None, &gauge(self.connections.now() as u64))?;
        put("connections_accepted", "Connections that have come.", None, &counter(accepted as u64))?;
        put("connections_refused", "Connections that were one too many.", None, &counter(closed as u64))?;
        put("exports_refused", "Exports that were not given: no token, or too many.", None, &counter(counts.refused))?;
        put("reads", "Requests to read.", None, &counter(counts.reads))?;
        put("read", "What was read.", bytes, &counter(counts.read_bytes))?;
        put("writes", "Requests to write.", None, &counter(counts.writes))?;
        put("written", "What was to be written.", bytes, &counter(counts.written_bytes))?;
        put("trims", "Requests to trim, or to write zeros.", None, &counter(counts.trims))?;
        put("errors", "Requests that were answered with an error.", None, &counter(counts.errors))?;
        put("full", "How often there was no memory for a write.", None, &counter(budget.refused()))
    }
}

/// A metric that can be written down.
trait Put {
    fn put(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, unit: Option<&Unit>) -> Result<(), fmt::Error>;
}

impl<M: EncodeMetric> Put for M {
    fn put(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, unit: Option<&Unit>) -> Result<(), fmt::Error> {
        let one = encoder.encode_descriptor(name, help, unit, self.metric_type())?;
        self.encode(one)
    }
}
