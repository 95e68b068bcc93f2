//! Polls a connection again at once if it wakes itself.
//!
//! The handler of a request runs in the task of its connection. When it wants the body, hyper wakes this task, although it
//! is running. The scheduler then puts the task at the end of its queue and wakes an idle thread for it, which costs more than
//! the rest of a small request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// How often a future is polled in a row. After that, other tasks get their turn. (hyper itself yields after 16 rounds of
/// pipelined requests, so this makes at most 64 of them.)
const MAX_POLLS: usize = 4;

/// No poll is in progress, and nobody has woken the future since the last one.
const WAITING: u8 = 0;
/// The future is being polled.
const POLLED: u8 = 1;
/// The future was woken, and its task or the one that polls it knows.
const WOKEN: u8 = 2;

/// A future that is polled again at once if it is woken while it is polled.
pub(crate) struct Repoll<F> {
    future: F,
    bell: Arc<Bell>,
    /// The waker that rings the bell.
    waker: Waker,
}

/// Passes a wake-up on to the task, unless the future is being polled.
struct Bell {
    state: AtomicU8,
    task: AtomicWaker,
}

impl<F> Repoll<F> {
    pub(crate) fn new(future: F) -> Self {
        let bell = Arc::new(Bell { state: AtomicU8::new(WAITING), task: AtomicWaker::new() });
        let waker = Waker::from(Arc::clone(&bell));
        Self { future, bell, waker }
    }

    /// Returns the future.
    pub(crate) fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == WAITING {
            self.task.wake();
        }
    }
}

impl<F: Future + Unpin> Future for Repoll<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, bell, waker } = &mut *self;
        bell.task.register(cx.waker());
        for _ in 0..MAX_POLLS {
            // What the others did before they woke the future is seen by this poll.
            bell.state.swap(POLLED, Ordering::AcqRel);
            let polled = Pin::new(&mut *future).poll(&mut Context::from_waker(waker));
            let unwoken =
                || bell.state.compare_exchange(POLLED, WAITING, Ordering::AcqRel, Ordering::Acquire);
            if polled.is_ready() || unwoken().is_ok() {
                return polled;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Count {
        fn get(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        /// Polls a future as the task that is counted.
        fn poll<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
            let waker = Waker::from(Arc::clone(self));
            Pin::new(future).poll(&mut Context::from_waker(&waker))
        }
    }

    #[test]
    fn a_future_that_wakes_itself_is_polled_again_without_waking_its_task() {
        let count = Arc::new(Count::default());
        let mut polls = 0;
        let mut future = Repoll::new(poll_fn(|cx| {
            polls += 1;
            match polls {
                3 => Poll::Ready(()),
                _ => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        }));
        assert!(count.poll(&mut future).is_ready());
        assert_eq!((polls, count.get()), (3, 0));
    }

    #[test]
    fn a_future_that_always_wakes_itself_lets_other_tasks_run() {
        let count = Arc::new(Count::default());
        let mut polls = 0;
        let mut future = Repoll::new(poll_fn(|cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        assert!(count.poll(&mut future).is_pending());
        assert_eq!(count.get(), 1);
        drop(future);
        assert_eq!(polls, MAX_POLLS);
    }

    #[test]
    fn a_future_that_is_woken_later_wakes_its_task_once() {
        let count = Arc::new(Count::default());
        let mut future = Repoll::new(std::future::pending::<()>());
        for round in 1..=2 {
            assert!(count.poll(&mut future).is_pending());
            future.waker.wake_by_ref();
            future.waker.wake_by_ref();
            assert_eq!(count.get(), round);
        }
    }

    #[tokio::test]
    async fn no_wake_up_of_another_thread_is_lost() {
        const ROUNDS: usize = 20_000;
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        let sending = std::thread::spawn(move || {
            for round in 0..ROUNDS {
                sender.blocking_send(round).unwrap();
            }
        });
        let received = Repoll::new(Box::pin(async {
            let mut count = 0;
            while let Some(round) = receiver.recv().await {
                assert_eq!(round, count);
                count += 1;
            }
            count
        }));
        let received = tokio::time::timeout(Duration::from_secs(60), received).await.unwrap();
        sending.join().unwrap();
        assert_eq!(received, ROUNDS);
    }
}
