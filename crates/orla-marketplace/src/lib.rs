//! The capabilities that programs and agents can call, and the single path to find and call them (RTFS
//! capability system).
//!
//! A *capability* is a [`CapabilityManifest`] plus the [`CapabilityExecutor`] for its kind of
//! provider. The [`CapabilityMarketplace`] holds an immutable [`Catalog`] of them and calls them on
//! one path, [`CapabilityMarketplace::call`]: look up, validate, admit, execute, validate, record.
//!
//! # How it works
//!
//! A reload builds the next catalogue beside the running one and swaps a pointer; a call holds the
//! catalogue it began with. Data travels as a lazy [`Payload`]: the bytes in which it arrived,
//! until its value is needed.
//!
//! # What is deliberately absent
//!
//! Providers, transports and the types of SDKs are absent. Domain types do not serialise themselves: the
//! front end writes the wire format.

#![warn(missing_docs)]

mod admission;
mod approval;
pub mod attestation;
mod call;
pub mod catalog;
mod client;
mod custody;
pub mod discovery;
mod error;
mod executor;
mod executors;
pub mod id;
mod journal;
pub mod json;
mod manifest;
mod marketplace;
mod memory;
mod notice;
mod outcome;
mod payload;
mod permission;
mod policy;
mod principal;
pub mod program;
mod provider;
mod quota;
mod redaction;
mod route;
pub mod schema;
mod search;
mod source;
mod span;
mod surface;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod trace;

pub use admission::breaker::BreakerLimits;
pub use approval::{
    AnswerError, ApprovalDecision, ApprovalRecord, ApprovalRule, Approvals, Approver, Approvers,
    MayAnswer, PendingApproval, is_waiting_message,
};
pub use call::hops::Hops;
pub use call::record::{CallRecord, RequestRecord};
pub use call::retry::jitter;
pub use call::stream::{OpenStream, StreamHandle};
pub use call::{
    Answering, Answers, BegunRequest, Call, CallContext, CallObserver, CallScope, Checkpoint, Ending,
    ObservedCall, ObservedRequest, Origin, Paused,
};
pub use catalog::{Catalog, CatalogBuilder, Denial, Entry, Hit, Limits, RegistrationError, Rejected};
pub use client::{Client, ClientError, INPUT_KEY};
pub use error::{
    Answered, BoxError, ERROR_KINDS, ErrorKind, MAX_SHOWN_CHARS, NotSent, RuntimeError, RuntimeResult,
    Undeclared, Violation, millis_down, millis_up, seconds,
};
pub use executor::{
    CapabilityExecutor, ConfinedBy, ProviderStatus, RoutedStatus, SandboxGrants, SandboxLevel,
    SandboxStatus,
};
pub use manifest::{
    ANNOTATIONS, Availability, CallPolicy, CapabilityAttestation, CapabilityManifest,
    CapabilityProvenance, DeclaredBy, HINTS, LISTED, Listing, Registration, ShownTo, TASK, TITLE,
    TaskSupport, is_annotation, is_idempotent, meant_hint,
};
pub use marketplace::CapabilityMarketplace;
pub use memory::{MemoryBudget, OverBudget, Reservation};
pub use notice::{LogLevel, LogText, Notice, NoticeObserver, NoticeSink, Progress, SentLog};
pub use outcome::Outcome;
pub use payload::{JsonText, Payload};
pub use permission::{NoPermission, Permission};
pub use policy::{AccessPolicy, Decision, Disclosure, Rule};
pub use principal::{ANONYMOUS, CallerPattern, Callers, IdentifiedBy, NoCallers, Principal};
pub use provider::{
    A2ACapability, A2AOptions, BodyMapping, Connection, CredentialPlace, CustomProvider, HttpCapability,
    HttpCredential, HttpOptions, HttpParameter, HttpPart, LocalCapability, MCPCapability, McpOptions,
    ParameterPlace, ParameterStyle, PluginCapability, PluginOptions, ProviderType, Redirects,
    RemoteOptions, RemoteRTFSCapability, SendAs, StreamCapabilityImpl, StreamItems, StreamOptions,
    StreamTransport, StreamType,
};
pub use quota::{
    Claim, Count, CountScope, CountedRule, Counting, MAX_COUNTS, NotTaken, Period, Permits, QuotaRule,
    QuotaUsage, Quotas, Rate, StoredCount, Taken,
};
pub use redaction::{REDACTED, Redactor};
pub use route::{Expression, Route, Routed, RoutedExecutor};
pub use rtfs;
pub use source::{ProviderProblem, Source};
pub use span::{OpenSpan, Span, SpanKind};
pub use surface::{Item, Subject, Surface, SurfaceError, SurfaceNotice, redacted};
