//! The requests of a program to its host.

use super::event::{CallOptions, CapabilityName, Event, Request, Ticket, Wait};
use super::op::HostOp;
use super::run::Run;
use crate::builtins::shown;
use crate::error::Error;
use crate::scalar::Instant;
use crate::value::Value;

impl Run {
    /// Executes an instruction that needs the host.
    pub(super) fn host(&mut self, id: usize, kind: HostOp, d: u8, a: u8, n: u8) {
        let Some(strand) = self.strands[id].as_mut() else { return };
        let from = strand.base + usize::from(a);
        let has_lazy = self.context.has_lazy;
        if kind == HostOp::Call && n == 2 && !has_lazy {
            // Nearly all are calls.
            let name = std::mem::take(&mut strand.stack[from]);
            let input = std::mem::take(&mut strand.stack[from + 1]);
            match CapabilityName::of(name) {
                Ok(name) => {
                    if self.counted(id) {
                        let ticket = self.new_ticket();
                        let request = Request::Call { id: name, input, options: CallOptions::default() };
                        self.ask(id, d, kind, ticket, request);
                    }
                }
                Err(other) => self.go_wrong(id, no_id(&other)),
            }
            return;
        }
        let args: Vec<_> =
            strand.stack[from..from + usize::from(n)].iter_mut().map(std::mem::take).collect();
        if has_lazy
            && let Some(found) =
                args.iter().find_map(|arg| crate::builtins::lazy_inside(arg, kind).transpose())
        {
            let seq = match found {
                Ok(seq) => seq,
                Err(large) => return self.go_wrong(id, large.into()),
            };
            // A lazy sequence leaves the run as its realized items: these are computed, and the request
            // is repeated.
            for (slot, arg) in strand.stack[from..].iter_mut().zip(args) {
                *slot = arg;
            }
            return self.realize(id, seq);
        }
        match self.request(id, kind, args) {
            Ok(None) => self.go_on(id, d, Value::Nil),
            Ok(Some(request)) => {
                let counts =
                    matches!(kind, HostOp::Call | HostOp::Open | HostOp::Search | HostOp::Describe);
                if counts && !self.counted(id) {
                    return;
                }
                let ticket = self.new_ticket();
                self.ask(id, d, kind, ticket, request);
            }
            Err(error) => self.go_wrong(id, error),
        }
    }

    fn open_stream(&self, value: &Value) -> Result<Ticket, Error> {
        let stream = stream_of(value)?;
        if self.streams.contains(&stream.0) { Ok(stream) } else { Err(not_open()) }
    }

    /// Returns the request; `None` if the host is only notified.
    fn request(&mut self, id: usize, kind: HostOp, args: Vec<Value>) -> Result<Option<Request>, Error> {
        let mut args = args.into_iter();
        let first = args.next().unwrap_or_default();
        Ok(Some(match kind {
            HostOp::Call => {
                let id = id_of(first)?;
                let (input, options) = input_of(args.collect())?;
                Request::Call { id, input, options }
            }
            HostOp::Open => {
                Request::Open { id: id_of(first)?, input: args.next().unwrap_or_else(empty_map) }
            }
            HostOp::Next => Request::Next { stream: self.open_stream(&first)? },
            HostOp::Send => Request::Send {
                stream: self.open_stream(&first)?,
                value: args.next().unwrap_or_default(),
            },
            HostOp::Close => Request::Close { stream: stream_of(&first)? },
            HostOp::Search => match &first {
                Value::Str(query) => Request::Search { query: query.as_str().to_owned() },
                Value::Nil => Request::Search { query: String::new() },
                other => {
                    return Err(Error::new(
                        "type",
                        format!("`capabilities` takes words, got {}", shown(other)),
                    ));
                }
            },
            HostOp::Describe => Request::Describe { id: id_of(first)? },
            HostOp::SleepUntil => Request::Wait(Wait::Until(instant_of(&first)?)),
            HostOp::AwaitTask => Request::Wait(Wait::Task(task_of(&first)?)),
            HostOp::AwaitEvent => Request::Wait(Wait::Event(event_of(first)?)),
            HostOp::Log => {
                let (level, message) = match &first {
                    Value::Keyword(level) => (level.name().to_owned(), args.next().unwrap_or_default()),
                    _ => ("info".to_owned(), first),
                };
                let mut data: Vec<_> = args.collect();
                let data = match data.len() {
                    0 => Value::Nil,
                    1 => data.remove(0),
                    _ => Value::vector(data).unwrap_or_default(),
                };
                let level = if level == "warning" { "warn".to_owned() } else { level };
                self.pay(crate::builtins::effort(&message));
                self.emit(Event::Log { level, message: message.to_string(), data });
                return Ok(None);
            }
            HostOp::StepBegin => {
                let name = first.to_string();
                let number = self.new_scope();
                if self.open_requests.is_some()
                    && let Some(strand) = self.strands[id].as_mut()
                {
                    strand.enter_step(&name, number);
                }
                self.emit(Event::StepBegin { name });
                return Ok(None);
            }
            HostOp::StepEnd => {
                if let Some(strand) = self.strands[id].as_mut() {
                    strand.leave_step();
                }
                self.emit(Event::StepEnd);
                return Ok(None);
            }
        }))
    }
}

/// Returns the error for a stream of another run, or of another process.
pub(super) fn not_open() -> Error {
    Error::new("unavailable", "this stream is closed: it belonged to an earlier run")
}

fn empty_map() -> Value {
    Value::Map(crate::Map::new())
}

fn id_of(value: Value) -> Result<CapabilityName, Error> {
    CapabilityName::of(value).map_err(|other| no_id(&other))
}

#[cold]
fn no_id(value: &Value) -> Error {
    Error::new("type", format!("the id of a capability is a keyword or a string, got {}", shown(value)))
}

fn instant_of(value: &Value) -> Result<Instant, Error> {
    let text = match value {
        Value::Instant(instant) => return Ok(instant.clone()),
        Value::Str(text) => text.as_str(),
        other => {
            let message = format!("`sleep-until` takes an instant or its text, got {}", shown(other));
            return Err(Error::new("type", message));
        }
    };
    Instant::parse(text).ok_or_else(|| {
        let message = format!(
            "`sleep-until` takes an RFC 3339 instant such as \"2026-11-20T10:00:00Z\", got {}",
            shown(value)
        );
        Error::new("invalid-argument", message)
    })
}

fn task_of(value: &Value) -> Result<String, Error> {
    match value {
        Value::Str(_) | Value::Uuid(_) => Ok(value.to_string()),
        other => Err(Error::new("type", format!("the id of a task is a string, got {}", shown(other)))),
    }
}

fn event_of(value: Value) -> Result<String, Error> {
    match CapabilityName::of(value) {
        Ok(name) => Ok(name.as_str().to_owned()),
        Err(other) => {
            let message =
                format!("the name of an event is a string or a keyword, got {}", shown(&other));
            Err(Error::new("type", message))
        }
    }
}

fn stream_of(value: &Value) -> Result<Ticket, Error> {
    match value {
        Value::Seq(seq) => seq.handle().map(|handle| Ticket(handle.id)),
        _ => None,
    }
    .ok_or_else(|| Error::new("type", format!("a stream is expected here, got {}", shown(value))))
}

/// Returns the input of a call: one value, or the positional arguments; then options, if the last of two
/// is a map that contains only options.
fn input_of(mut args: Vec<Value>) -> Result<(Value, CallOptions), Error> {
    let mut options = CallOptions::default();
    let is_options = |value: &Value| {
        matches!(value, Value::Map(map) if !map.is_empty()
            && map.iter().all(|(key, _)| matches!(key, Value::Keyword(key) if matches!(key.name(), "timeout-ms" | "retries"))))
    };
    if args.len() == 2
        && is_options(&args[1])
        && let Some(Value::Map(map)) = args.pop()
    {
        let whole = |name: &str| match map.get_keyword(name) {
            None | Some(Value::Nil) => Ok(None),
            Some(Value::Int(n)) if *n >= 0 => Ok(Some(*n as u64)),
            Some(other) => {
                let message = format!("`:{name}` is a whole number of at least 0, got {}", shown(other));
                Err(Error::new("invalid-argument", message))
            }
        };
        options.timeout_ms = whole("timeout-ms")?;
        options.retries = whole("retries")?.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    }
    let input = match args.len() {
        0 => empty_map(),
        1 => args.remove(0),
        _ => Value::vector(args).map_err(|deep| Error::limit("nesting", deep.to_string()))?,
    };
    Ok((input, options))
}
