//! What happened, counted.

use crate::counters::counters;

counters! {
    /// New-Orders that were done.
    NewOrders "neworder",
    /// New-Orders with an item that there is not, of which nothing has happened.
    Rollbacks "rollback",
    /// Payments.
    Payments "payment",
    /// Order-Statuses.
    OrderStatuses "orderstatus",
    /// Deliveries.
    Deliveries "delivery",
    /// Districts of deliveries without an order to deliver.
    Skipped "skipped",
    /// Stock-Levels.
    StockLevels "stocklevel",
    /// Requests that were not done.
    Refused "refused",
    /// Tries that were given up since another transaction was quicker.
    Conflicts "conflicts",
    /// Transactions that got the database for themselves, after many conflicts.
    Alone "alone",
}
