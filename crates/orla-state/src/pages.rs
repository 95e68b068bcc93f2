//! Reading many records a page at a time.

use crate::{Order, Query, Record, StateError, StateStore};

/// The records of a query, page by page, so that reading many records needs little memory. Each page is
/// read on request, and sees all earlier writes.
pub struct Pages<'s> {
    store: &'s dyn StateStore,
    /// The rest of the query. Its limit is the size of a page.
    query: Query,
    is_over: bool,
}

impl<'s> Pages<'s> {
    /// The records of a query, whose limit is the size of a page.
    pub fn new(store: &'s dyn StateStore, query: Query) -> Self {
        Self { store, is_over: query.limit == 0, query }
    }

    /// Returns all records whose keys begin with `prefix`, the least key first, `size` at a time.
    pub fn below(store: &'s dyn StateStore, prefix: &str, size: usize) -> Self {
        Self::new(store, Query::below(prefix, size))
    }

    /// Returns the next page. It is empty only after the last record.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read. Asking again reads the same page.
    pub async fn next(&mut self) -> Result<Vec<Record>, StateError> {
        if self.is_over {
            return Ok(Vec::new());
        }
        let rows = self.store.list(self.query.clone()).await?;
        self.is_over = rows.len() < self.query.limit;
        if let Some(last) = rows.last() {
            match self.query.order {
                // The least key after it.
                Order::Ascending => self.query.keys.start = format!("{}\0", last.key),
                Order::Descending => self.query.keys.end.clone_from(&last.key),
            }
        }
        Ok(rows)
    }

    /// Returns all records that are left.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub async fn rest(mut self) -> Result<Vec<Record>, StateError> {
        let mut all = self.next().await?;
        while !self.is_over {
            all.extend(self.next().await?);
        }
        Ok(all)
    }
}
