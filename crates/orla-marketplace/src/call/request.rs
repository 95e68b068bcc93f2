//! Requests to surfaces: the one path for prompts, resources and completion.
//!
//! The steps are those of a call, where applicable: authorise, ask, record. A surface that the policy
//! denies to the caller is skipped. The answer is then the same as for a name that does not exist.

use std::sync::Arc;

use rtfs::text::excerpt;

use super::record::RequestRecording;
use super::{Call, CallContext};
use crate::catalog::Catalog;
use crate::error::MAX_SHOWN_CHARS;
use crate::marketplace::CapabilityMarketplace;
use crate::payload::JsonText;
use crate::surface::{Item, Subject, Surface, SurfaceError};

impl CapabilityMarketplace {
    /// Offers a request to the surfaces of the snapshot in order, until one knows the subject.
    /// Returns that surface and its result.
    ///
    /// # Errors
    /// See [`SurfaceError`]; `NotFound` if no surface has the subject or the policy denies it.
    pub async fn request(
        &self,
        catalog: &Catalog,
        call: &Call,
        method: &str,
        subject: Subject<'_>,
        params: &JsonText,
    ) -> Result<(Arc<dyn Surface>, JsonText), SurfaceError> {
        let id = self.reserve_call_id();
        let mut call = call.clone();
        call.scope.call_id = Some(Arc::clone(&id));
        let mut recording = self.record_request(&call, id, (method, subject));
        recording.observe(self, &mut call.scope, params);
        let cancellation = call.scope.cancellation.clone();
        let offered = tokio::select! {
            biased;
            () = cancellation.cancelled() => None,
            offered = self.offer(catalog, &call, (method, subject), params, &mut recording) => Some(offered),
        };
        let Some(result) = offered else {
            let what = format!("{method} of {} was cancelled", excerpt(subject.name(), MAX_SHOWN_CHARS));
            recording.cancel(&what);
            return Err(SurfaceError::Failed(what));
        };
        recording.finish(result.as_ref().map(|(_, answer)| Some(answer)));
        result.map_err(|error| self.disclosed(catalog, &call, (method, subject), error))
    }

    /// Checks that a caller may share what a surface has granted to another caller.
    ///
    /// # Errors
    /// `NotFound` or `Denied`, as [`request`](Self::request).
    pub fn admit(
        &self,
        catalog: &Catalog,
        call: &Call,
        surface: &dyn Surface,
        method: &str,
        subject: Subject<'_>,
    ) -> Result<(), SurfaceError> {
        let mut recording = self.record_request(call, self.reserve_call_id(), (method, subject));
        let unknown = || Err(SurfaceError::NotFound(unknown(subject)));
        let result = surface.item(subject).map_or_else(unknown, |item| {
            recording.concerns(&item);
            self.permit(catalog, call, &item)
        });
        recording.finish(result.as_ref().map(|()| None));
        result.map_err(|error| self.disclosed(catalog, call, (method, subject), error))
    }

    async fn offer(
        &self,
        catalog: &Catalog,
        call: &Call,
        (method, subject): (&str, Subject<'_>),
        params: &JsonText,
        recording: &mut RequestRecording,
    ) -> Result<(Arc<dyn Surface>, JsonText), SurfaceError> {
        let mut failure = SurfaceError::NotFound(unknown(subject));
        for surface in catalog.surfaces().iter().filter(|surface| surface.serves(method)) {
            let Some(item) = surface.item(subject) else { continue };
            if let Err(denied) = self.permit(catalog, call, &item) {
                recording.concerns(&item);
                failure = denied;
                continue;
            }
            recording.concerns(&item);
            match surface.request(method, params, &self.context_of(call, &**surface)).await {
                // A denial by the policy of another surface is more informative.
                Err(SurfaceError::NotFound(_)) if matches!(failure, SurfaceError::Denied { .. }) => {}
                Err(not_found @ SurfaceError::NotFound(_)) => failure = not_found,
                answered => return answered.map(|result| (Arc::clone(surface), result)),
            }
        }
        Err(failure)
    }

    fn context_of(&self, call: &Call, surface: &dyn Surface) -> CallContext {
        let mut call = call.clone();
        call.target = surface.owner().to_owned();
        self.surface_context(&call)
    }

    fn record_request(
        &self,
        call: &Call,
        id: Arc<str>,
        requested: (&str, Subject<'_>),
    ) -> RequestRecording {
        RequestRecording::begin(requested, &call.scope, id, self.request_observers(), self.redaction())
    }

    /// Checks that the policies permit an item.
    fn permit(&self, catalog: &Catalog, call: &Call, item: &Item) -> Result<(), SurfaceError> {
        let principal = call.scope.principal.as_ref();
        catalog.permits_item(principal, item).map_err(|denial| SurfaceError::Denied {
            id: item.id.clone(),
            rule: denial.rule(),
            permission: self.redaction().text(&denial.permission).into_owned(),
            scopes: catalog.helpful_scopes(principal, item),
        })
    }

    /// Returns the error that its caller may see. If the policy conceals, a denied subject and one that
    /// no surface has give the same error.
    fn disclosed(
        &self,
        catalog: &Catalog,
        call: &Call,
        (method, subject): (&str, Subject<'_>),
        error: SurfaceError,
    ) -> SurfaceError {
        let what = match error {
            SurfaceError::Denied { .. } | SurfaceError::NotFound(_) if catalog.conceals() => {
                unknown(subject)
            }
            SurfaceError::NotFound(what) => what,
            other => return other,
        };
        let visible = |surface: &dyn Surface, name: &str| {
            let item = match subject {
                Subject::Prompt(_) => surface.item(Subject::Prompt(name)),
                Subject::Resource(_) => surface.item(Subject::Resource(name)),
                Subject::Template(_) => surface.item(Subject::Template(name)),
            };
            item.is_some_and(|item| self.permit(catalog, call, &item).is_ok())
        };
        let near =
            catalog.surfaces().iter().filter(|surface| surface.serves(method)).find_map(|surface| {
                surface.similar(subject).into_iter().find(|name| visible(&**surface, name))
            });
        let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        SurfaceError::NotFound(format!("{what}{hint}"))
    }
}

/// Returns the sentence for a subject that no surface has.
fn unknown(subject: Subject<'_>) -> String {
    let kind = match subject {
        Subject::Prompt(_) => "prompt",
        Subject::Resource(_) | Subject::Template(_) => "resource",
    };
    format!("unknown {kind}: {}", excerpt(subject.name(), MAX_SHOWN_CHARS))
}
