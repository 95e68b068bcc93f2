//! `orla secret`: sets, lists and removes the secrets that `${secret:NAME}` refers to.

use std::io::{IsTerminal, Read};

use orla_secrets::{Protection, Secret, SecretStore, StoreError, is_name, read_hidden};

use crate::{Failure, cli, render};

/// The maximum number of bytes of a value.
const MAX_VALUE: u64 = 1 << 20;

pub(crate) fn run(command: &cli::Secret) -> Result<(), Failure> {
    let store = SecretStore::of_user()
        .ok_or_else(|| Failure::failed("there is no secret store, because HOME is not set"))?;
    match command {
        cli::Secret::Set { name } => set(&store, name),
        cli::Secret::List { json } => list(&store, *json),
        cli::Secret::Remove { name } => remove(&store, name),
    }
}

fn set(store: &SecretStore, name: &str) -> Result<(), Failure> {
    check(name)?;
    let value = read_value(name)?;
    let protection = store.set(name, value).map_err(|err| failed(&err))?;
    render::note(&format!("{name} is set: {}", place(store, protection)));
    Ok(())
}

fn list(store: &SecretStore, json: bool) -> Result<(), Failure> {
    let names = store.names().map_err(|err| failed(&err))?;
    if json {
        return super::print_json(&names);
    }
    names.iter().for_each(|name| render::line(name));
    match store.protection().map_err(|err| failed(&err))? {
        Some(protection) => render::note(&place(store, protection)),
        None => render::note("no secret is set; `orla secret set NAME` sets one"),
    }
    Ok(())
}

fn remove(store: &SecretStore, name: &str) -> Result<(), Failure> {
    check(name)?;
    match store.remove(name).map_err(|err| failed(&err))? {
        true => Ok(()),
        false => {
            Err(Failure::failed(format!("no secret is named {name}; `orla secret list` shows them")))
        }
    }
}

/// Returns the value from standard input, without the end of its line.
fn read_value(name: &str) -> Result<Secret, Failure> {
    let unread = |err: std::io::Error| Failure::failed(format!("the value cannot be read: {err}"));
    let value = if std::io::stdin().is_terminal() {
        render::question(&format!("Value of {name}: "));
        read_hidden().map_err(unread)?
    } else {
        let mut value = String::new();
        std::io::stdin().take(MAX_VALUE + 1).read_to_string(&mut value).map_err(unread)?;
        Secret::from_line(value)
    };
    match value.expose() {
        "" => Err(Failure::usage("the value is empty; give it on standard input")),
        value if value.len() as u64 > MAX_VALUE => {
            Err(Failure::usage(format!("the value is longer than {MAX_VALUE} bytes")))
        }
        value if value.contains('\0') => Err(Failure::usage("the value has a NUL character")),
        _ => Ok(value),
    }
}

fn check(name: &str) -> Result<(), Failure> {
    match is_name(name) {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{name:?} is not a valid name of a secret: use letters, digits, `_`, `-`, `.` and `/`"
        ))),
    }
}

/// Where the secrets are, and what protects them.
fn place(store: &SecretStore, protection: Protection) -> String {
    let file = store.path();
    match protection {
        Protection::Keyring => {
            format!(
                "the store {} is encrypted, with its key in the keyring of this system",
                file.display()
            )
        }
        Protection::KeyFile => format!(
            "the store {} is encrypted, with its key beside it in {} (mode 0600), because there is no keyring here: \
             a program of the same user can read both",
            file.display(),
            store.key_path().display()
        ),
    }
}

fn failed(err: &StoreError) -> Failure {
    Failure::failed(err.to_string())
}
