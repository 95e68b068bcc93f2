//! Tokens by subject, each renewed by one request at a time.
//!
//! # How it works
//!
//! A [`Slot`] holds the newest token of a subject. A caller that finds no fresh token waits for the
//! slot's lock, checks again, and only then obtains one. Callers that waited meanwhile share the result,
//! a failure included. The renewal runs in a separate task: a refresh token is used up once it was sent,
//! so the answer must not be lost with its caller.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use parking_lot::{Mutex, RwLock};
use tokio_util::task::TaskTracker;

use crate::error::Error;
use crate::scope::Scopes;
use crate::secret::Secret;
use crate::token::Token;

/// The maximum number of cached subjects.
const MAX_SUBJECTS: usize = 10_000;

/// The tokens of one server.
#[derive(Debug, Default)]
pub struct Cache(Mutex<HashMap<String, Arc<Slot>>>);

impl Cache {
    /// Returns the slot of a subject.
    pub fn slot(&self, subject: &str) -> Arc<Slot> {
        let mut slots = self.0.lock();
        if let Some(slot) = slots.get(subject) {
            return Arc::clone(slot);
        }
        if slots.len() >= MAX_SUBJECTS {
            let now = SystemTime::now();
            let is_used = |slot: &Arc<Slot>| Arc::strong_count(slot) > 1;
            slots.retain(|_, slot| {
                is_used(slot) || slot.token().is_some_and(|token| token.is_fresh(now))
            });
            if slots.len() >= MAX_SUBJECTS {
                slots.retain(|_, slot| is_used(slot));
            }
        }
        Arc::clone(slots.entry(subject.to_owned()).or_default())
    }

    /// Drops all tokens.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

/// The token of one subject.
#[derive(Debug, Default)]
pub struct Slot {
    token: RwLock<Option<Arc<Token>>>,
    /// The scopes that the server has requested beyond those of the settings.
    wanted: RwLock<Scopes>,
    /// Held while a token is obtained.
    renewing: Arc<tokio::sync::Mutex<Option<Ended>>>,
}

/// The end of the last renewal.
#[derive(Debug)]
struct Ended {
    at: Instant,
    failure: Option<Error>,
}

impl Slot {
    /// Returns the newest token, fresh or not.
    pub fn token(&self) -> Option<Arc<Token>> {
        self.token.read().clone()
    }

    /// Returns the scopes that the next token needs beyond those of the settings.
    pub fn wanted(&self) -> Scopes {
        self.wanted.read().clone()
    }

    /// Adds scopes that the next token needs.
    pub fn request(&self, scopes: &Scopes) {
        let mut wanted = self.wanted.write();
        *wanted = wanted.union(scopes);
    }

    /// Returns the newest token if it is fresh and not the one that was `rejected`.
    fn usable(&self, rejected: Option<&Secret>) -> Option<Arc<Token>> {
        let token = self.token()?;
        let is_usable = token.is_fresh(SystemTime::now()) && Some(&token.access) != rejected;
        is_usable.then_some(token)
    }

    /// Returns a fresh token that is not the `rejected` one. If there is none, `obtain` gets one as a
    /// task of `tasks`, one at a time. `None` if `obtain` returns none.
    ///
    /// # Errors
    /// That of `obtain`.
    pub async fn renewed<F>(
        self: &Arc<Self>,
        rejected: Option<&Secret>,
        tasks: &TaskTracker,
        obtain: impl FnOnce() -> F,
    ) -> Result<Option<Arc<Token>>, Error>
    where
        F: Future<Output = Result<Option<Token>, Error>> + Send + 'static,
    {
        if let Some(token) = self.usable(rejected) {
            return Ok(Some(token));
        }
        let begun = Instant::now();
        let mut renewing = Arc::clone(&self.renewing).lock_owned().await;
        if let Some(token) = self.usable(rejected) {
            return Ok(Some(token));
        }
        if let Some(ended) = renewing.as_ref().filter(|ended| ended.at >= begun) {
            return ended.failure.clone().map_or(Ok(None), Err);
        }
        let obtained = obtain();
        let slot = Arc::clone(self);
        let renewal = tasks.spawn(async move {
            let obtained = obtained.await;
            let failure = obtained.as_ref().err().cloned();
            let token = obtained.map(|token| token.map(Arc::new));
            if let Ok(token) = &token {
                slot.token.write().clone_from(token);
            }
            *renewing = Some(Ended { at: Instant::now(), failure });
            token
        });
        renewal.await.unwrap_or_else(|_| Err(Error::Failed("the renewal of a token failed".to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;

    fn token(text: &str, fresh: bool) -> Token {
        let renew_at = if fresh { None } else { Some(SystemTime::UNIX_EPOCH) };
        Token { access: Secret::new(text), refresh: None, renew_at, scopes: Scopes::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn many_callers_share_one_renewal() {
        let (slot, count) = (Arc::new(Slot::default()), Arc::new(AtomicU32::new(0)));
        let ask = || {
            let (slot, count) = (Arc::clone(&slot), Arc::clone(&count));
            TaskTracker::new().spawn(async move {
                let obtain = || async move {
                    sleep(Duration::from_millis(10)).await;
                    Ok(Some(token(&format!("t{}", count.fetch_add(1, Ordering::Relaxed)), true)))
                };
                slot.renewed(None, &TaskTracker::new(), obtain)
                    .await
                    .unwrap()
                    .unwrap()
                    .access
                    .expose()
                    .to_owned()
            })
        };
        let asked: Vec<_> = (0..64).map(|_| ask()).collect();
        for one in asked {
            assert_eq!(one.await.unwrap(), "t0");
        }
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_share_a_failure_and_the_next_tries_again() {
        let (slot, count) = (Arc::new(Slot::default()), Arc::new(AtomicU32::new(0)));
        let ask = || {
            let (slot, count) = (Arc::clone(&slot), Arc::clone(&count));
            TaskTracker::new().spawn(async move {
                let obtain = || async move {
                    sleep(Duration::from_millis(10)).await;
                    count.fetch_add(1, Ordering::Relaxed);
                    Err(Error::Failed("no".into()))
                };
                slot.renewed(None, &TaskTracker::new(), obtain).await
            })
        };
        let asked: Vec<_> = (0..8).map(|_| ask()).collect();
        for one in asked {
            assert!(one.await.unwrap().is_err());
        }
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(ask().await.unwrap().is_err());
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_completed_without_its_caller() {
        let slot = Arc::new(Slot::default());
        let asked = Arc::clone(&slot);
        let asking = TaskTracker::new().spawn(async move {
            let obtain = || async {
                sleep(Duration::from_millis(10)).await;
                Ok(Some(token("kept", true)))
            };
            asked.renewed(None, &TaskTracker::new(), obtain).await
        });
        sleep(Duration::from_millis(1)).await;
        asking.abort();
        sleep(Duration::from_millis(20)).await;
        assert_eq!(slot.token().unwrap().access.expose(), "kept");
    }

    #[tokio::test]
    async fn a_rejected_or_old_token_is_replaced_and_any_other_is_kept() {
        let slot = Arc::new(Slot::default());
        let obtained = async |rejected: Option<&Secret>, text: &'static str, fresh: bool| {
            let obtain = || async move { Ok(Some(token(text, fresh))) };
            let token = slot.renewed(rejected, &TaskTracker::new(), obtain).await.unwrap().unwrap();
            token.access.expose().to_owned()
        };
        assert_eq!(obtained(None, "a", true).await, "a");
        assert_eq!(obtained(None, "b", true).await, "a");
        // Another request has replaced the rejected token already.
        assert_eq!(obtained(Some(&Secret::new("x")), "b", true).await, "a");
        assert_eq!(obtained(Some(&Secret::new("a")), "b", false).await, "b");
        assert_eq!(obtained(None, "c", true).await, "c");
    }

    #[test]
    fn the_number_of_subjects_is_bounded() {
        let cache = Cache::default();
        let used = cache.slot("used");
        for number in 0..2 * MAX_SUBJECTS {
            cache.slot(&number.to_string());
        }
        assert!(cache.0.lock().len() <= MAX_SUBJECTS);
        assert!(Arc::ptr_eq(&used, &cache.slot("used")));
    }
}
